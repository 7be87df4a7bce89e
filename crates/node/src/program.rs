//! Runs the programs that print and change firewall rules, such as `iptables-save`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use cni::process;

/// Runs a program with `input` as its standard input, and returns its standard output. Returns
/// `None` if the program is not installed, because this is no error for most callers.
///
/// # Errors
/// The program cannot be run, or fails. It runs longer than a minute, or prints more than 64 MiB.
pub fn output_of(words: &[&str], input: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
    let (program, arguments) = words.split_first().context("no program")?;
    let mut command = Command::new(program);
    let output = match process::output_of(command.args(arguments), input, LONGEST) {
        Err(error) if error.is_not_found() => return Ok(None),
        output => output?,
    };
    let (words, errors) = (words.join(" "), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{words}: {}", errors.trim());
    Ok(Some(output.stdout))
}

/// Time limit of a program. `iptables-restore` may wait for another program's lock on the rules.
const LONGEST: Duration = Duration::from_mins(1);
