//! Runs the programs of firewalls.

use std::io::{ErrorKind, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

/// Returns the output of a program; empty if the program is not installed, so it cannot have added
/// rules.
pub(super) fn output_of(words: &[&str]) -> anyhow::Result<Option<String>> {
    let (program, arguments) = words.split_first().context("no program")?;
    match Command::new(program).args(arguments).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("run {program}")),
        Ok(output) if output.status.success() => {
            Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
        }
        Ok(output) => bail!(
            "{}: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        ),
    }
}

/// Runs a program with a script on its standard input.
pub(super) fn carry_out(words: &[&str], script: &str) -> anyhow::Result<()> {
    let (program, arguments) = words.split_first().context("no program")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let running = || format!("run {program}");
    let mut child = command.spawn().with_context(running)?;
    // The program prints nothing before it has read the whole script, so this cannot block.
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(script.as_bytes()).with_context(running)?;
    }
    let output = child.wait_with_output().with_context(running)?;
    if !output.status.success() {
        bail!(
            "{}: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
