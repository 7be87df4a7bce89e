//! `migrate`: removes rules of the reference for attachments that no longer exist.
//!
//! Plugins of this suite do not change rules of others. A rule of the reference stays after the DEL
//! of a later plugin, and a port that it forwards has no destination.

mod iptables;
mod nftables;
mod program;
mod remnant;

use std::fmt;

use anyhow::Context as _;
use cni::{all, note};
use runtime::Directories;

use self::remnant::{Remnant, Table};
use crate::reference::Living;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Only lists them.
    List,
    /// Removes those of attachments that no longer exist.
    Remove,
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
