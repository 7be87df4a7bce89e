//! Runs the programs that print and change firewall rules, such as `iptables-save`.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use cni::files::if_present;

/// Runs a program with `input` as its standard input, and returns its standard output. Returns
/// `None` if the program is not installed, because this is no error for most callers.
///
/// # Errors
/// The program cannot be run, or fails.
pub fn output_of(words: &[&str], input: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
    let (program, arguments) = words.split_first().context("no program")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = || format!("run {program}");
    let Some(mut child) = if_present(command.spawn()).with_context(running)? else {
        return Ok(None);
    };
    // These programs print nothing before they have read their whole input. So they never wait for
    // a reader of their output while this thread writes.
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input).with_context(running)?;
    }
    let output = child.wait_with_output().with_context(running)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{}: {}",
        words.join(" "),
        errors.trim()
    );
    Ok(Some(output.stdout))
}
