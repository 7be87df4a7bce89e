//! Files that make the host's network managers ignore the plugins' links.

use std::path::Path;

use cni::note;

/// Returns path and content of each drop-in (a file that makes a network manager ignore the
/// plugins' links) whose network manager this host has. Reports the other drop-ins on standard
/// error as not needed.
pub fn needed() -> impl Iterator<Item = (&'static str, &'static str)> {
    DROP_INS.into_iter().filter_map(|[manager, path, content]| {
        let is_needed = Path::new(manager).is_dir();
        if !is_needed {
            note!("{path}: not needed, there is no {manager}");
        }
        is_needed.then_some((path, content))
    })
}

/// Returns whether the drop-ins make the network managers ignore a link of this name.
pub fn cover(link: &str) -> bool {
    let names = NETWORK.lines().find_map(|it| it.strip_prefix("Name="));
    let mut names = names.unwrap_or_default().split_whitespace();
    names.any(|name| match name.strip_suffix('*') {
        Some(beginning) => link.starts_with(beginning),
        None => link == name,
    })
}

/// For each file: a directory that exists if the network manager is installed, the path of the
/// file, and the file's content.
const DROP_INS: [[&str; 3]; 3] = [
    [SYSTEMD, "/etc/systemd/network/05-cni.network", NETWORK],
    [SYSTEMD, "/etc/systemd/network/05-cni.link", LINK],
    [
        "/etc/NetworkManager",
        "/etc/NetworkManager/conf.d/05-cni.conf",
        include_str!("../../../conf-examples/host/NetworkManager/conf.d/05-cni.conf"),
    ],
];

const SYSTEMD: &str = "/etc/systemd";
const LINK: &str = include_str!("../../../conf-examples/host/systemd/network/05-cni.link");
const NETWORK: &str = include_str!("../../../conf-examples/host/systemd/network/05-cni.network");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_for_the_same_links() {
        let names = ["cni*", "cbr0", "veth*", "bwp*"];
        for (place, key) in [(0, "Name"), (1, "OriginalName")] {
            let line = format!("\n{key}={}\n", names.join(" "));
            assert!(DROP_INS[place][2].contains(&line), "{line}");
        }
        let names = names.map(|it| format!("interface-name:{it}"));
        let line = format!("\nmatch-device={}\n", names.join(";"));
        assert!(DROP_INS[2][2].contains(&line), "{line}");
        let covered = ["cni0", "cbr0", "veth1", "bwp2", "cbr01", "br0"].map(cover);
        assert_eq!(covered, [true, true, true, true, false, false]);
    }
}
