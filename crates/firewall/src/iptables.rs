//! The version of the program iptables, on which the form of the plugin's rules depends.

use std::process::Command;
use std::time::Duration;

use cni::{note, process};
use nft::Comparison;

/// Returns how the rules in tables of iptables compare the firewall mark: in the form that the
/// installed iptables reads. Without an iptables that reports its version, in the form that nft(8)
/// reads everywhere.
pub(crate) fn comparison() -> Comparison {
    for program in PROGRAMS {
        let mut command = Command::new(program);
        match process::output_of(command.arg("--version"), b"", LONGEST_VERSION) {
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                note!("{:#}", anyhow::Error::from(error));
                break;
            }
            Ok(output) => match parsed(&String::from_utf8_lossy(&output.stdout)) {
                Some(version) if version < READS_NATIVE => return Comparison::Iptables,
                Some(_) => break,
                None => {}
            },
        }
    }
    Comparison::Native
}

/// Parses the output of `iptables --version`, such as `iptables v1.8.7 (nf_tables)`.
fn parsed(said: &str) -> Option<[u32; 3]> {
    let version = said
        .split_whitespace()
        .find_map(|it| it.strip_prefix('v'))?;
    let mut numbers = version.split('.').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some([next()?, next()?, next().unwrap_or(0)])
}

/// Names of iptables-nft: beside iptables-legacy, and alone.
const PROGRAMS: [&str; 2] = ["iptables-nft", "iptables"];

/// Time limit of `iptables --version`, which prints a constant.
const LONGEST_VERSION: Duration = Duration::from_secs(3);

/// The first version that reads comparisons of the mark that are expressions of `nf_tables`.
const READS_NATIVE: [u32; 3] = [1, 8, 8];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_read_from_what_iptables_prints() {
        assert_eq!(parsed("iptables v1.8.7 (nf_tables)\n"), Some([1, 8, 7]));
        assert_eq!(parsed("iptables v1.8.10 (legacy)\n"), Some([1, 8, 10]));
        assert_eq!(parsed("iptables v1.9\n"), Some([1, 9, 0]));
        for none in ["", "iptables", "iptables vx.8.7"] {
            assert_eq!(parsed(none), None);
        }
        assert!([1, 8, 7] < READS_NATIVE && [1, 8, 10] > READS_NATIVE);
    }
}
