//! `migrate`: what the reference left in the firewall for attachments that are gone.
//!
//! Our plugins find what is theirs, and leave the rules of others alone. A rule of the reference outlives the DEL
//! of whoever came after it, and a port that it forwards leads nowhere.

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

/// Whether anything is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Only told.
    List,
    /// What is of attachments that are gone.
    Remove,
}

/// A table of a firewall in which the reference has something.
trait Table {
    /// How an administrator finds it.
    fn title(&self) -> String;

    /// What is of single attachments.
    fn remnants(&self) -> &[Remnant];

    /// There is something that all attachments share.
    fn is_shared(&self) -> bool;

    /// Removes these in one transaction and, where they are all that there is, what they shared.
    fn remove(&self, gone: &[&Remnant]) -> anyhow::Result<()>;
}

/// What is of one attachment, a chain or a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Remnant {
    /// By which it is found in its table.
    name: String,
    /// Whose it is, in the reference's own words.
    owner: String,
    mark: Mark,
    /// Those that its rules name, of the sandbox and perhaps of the host.
    addresses: BTreeSet<IpAddr>,
}

/// Tells what there is by `tell`, a line each, and removes what `action` says.
///
/// # Errors
/// A firewall cannot be read or changed, the cache cannot be read, or nothing be told. All tables are tried.
pub fn migrate(
    directories: &Directories,
    action: Action,
    tell: impl Fn(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // In this order: what an ADD makes meanwhile is not seen, or seen with its lease, which comes first.
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

/// What is said of a remnant.
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

/// What a program of the administrator's prints, or nothing where it is not installed: then nobody used it here.
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

/// Has such a program carry out a script.
fn carry_out(words: &[&str], script: &str) -> anyhow::Result<()> {
    let (program, arguments) = words.split_first().context("no program")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let running = || format!("run {program}");
    let mut child = command.spawn().with_context(running)?;
    // It is in no hurry to say anything before it has read all of it.
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
