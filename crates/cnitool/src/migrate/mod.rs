//! `migrate`: removes rules of the reference for attachments that no longer exist.
//!
//! Plugins of this suite do not change rules of others. A rule of the reference stays after the DEL
//! of a later plugin, and a port that it forwards has no destination.

mod iptables;
mod nftables;

use std::collections::BTreeSet;
use std::fmt;
use std::io::{ErrorKind, Write as _};
use std::net::IpAddr;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use cni::{all, note};
use runtime::Directories;

use crate::reference::{Living, Mark};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Only lists them.
    List,
    /// Removes those of attachments that no longer exist.
    Remove,
}

/// A table of a firewall with rules of the reference.
trait Table {
    /// Returns the title under which an administrator finds it.
    fn title(&self) -> String;

    /// Returns the chains or rules of single attachments.
    fn remnants(&self) -> &[Remnant];

    /// Returns whether it has rules that all attachments share.
    fn is_shared(&self) -> bool;

    /// Removes these in one transaction. If no others remain, it also removes the shared rules.
    fn remove(&self, gone: &[&Remnant]) -> anyhow::Result<()>;
}

/// A chain or rule of one attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Remnant {
    /// Its identifier in the table.
    name: String,
    /// Its owner, in the reference's own words.
    owner: String,
    mark: Mark,
    /// Addresses in its rules, of the sandbox and perhaps of the host.
    addresses: BTreeSet<IpAddr>,
}

/// Lists each remnant with `tell`, and removes those that `action` selects.
///
/// # Errors
/// A firewall cannot be read or changed, the cache cannot be read, or `tell` fails. All tables are
/// tried.
pub fn migrate(
    directories: &Directories,
    action: Action,
    tell: impl Fn(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // The tables are read before leases: so rules of a concurrent ADD are either not seen, or seen
    // with its lease, which it makes first.
    let tables = tables()?;
    let living = Living::read(directories)?;
    if tables.is_empty() {
        note("the reference has nothing in the firewall");
    }
    let outcomes = tables.iter().map(|table| {
        let lines = clean(table.as_ref(), &living, action);
        let lines = lines.with_context(|| table.title())?;
        lines.iter().try_for_each(|line| tell(line))
    });
    all(outcomes)
}

fn tables() -> anyhow::Result<Vec<Box<dyn Table>>> {
    let mut tables: Vec<Box<dyn Table>> = Vec::new();
    for nat in iptables::tables()? {
        tables.push(Box::new(nat));
    }
    for table in nftables::tables()? {
        tables.push(Box::new(table));
    }
    Ok(tables)
}

fn clean(table: &dyn Table, living: &Living, action: Action) -> anyhow::Result<Vec<String>> {
    let stays = |it: &&Remnant| living.has(&it.mark) || living.is_at(&it.addresses);
    let (kept, gone): (Vec<_>, Vec<_>) = table.remnants().iter().partition(stays);
    if action == Action::Remove && (!gone.is_empty() || kept.is_empty() && table.is_shared()) {
        table.remove(&gone)?;
    }
    let title = table.title();
    let line = |state: Fate, what: &str| format!("{state:<8}{title}: {what}");
    let told =
        |state: Fate| move |it: &&Remnant| line(state, &format!("{}, {}", it.name, it.owner));
    let fate = if action == Action::Remove {
        Fate::Removed
    } else {
        Fate::Gone
    };
    let mut lines: Vec<_> = kept.iter().map(told(Fate::Living)).collect();
    lines.extend(gone.iter().map(told(fate)));
    if kept.is_empty() && table.is_shared() {
        lines.push(line(fate, "what all attachments shared"));
    }
    Ok(lines)
}

/// The state of a remnant.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Living,
    Gone,
    Removed,
}

impl fmt::Display for Fate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Living => "living",
            Self::Gone => "gone",
            Self::Removed => "removed",
        })
    }
}

/// Returns the output of a program; empty if the program is not installed, so it cannot have added
/// rules.
fn output_of(words: &[&str]) -> anyhow::Result<Option<String>> {
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
fn carry_out(words: &[&str], script: &str) -> anyhow::Result<()> {
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
