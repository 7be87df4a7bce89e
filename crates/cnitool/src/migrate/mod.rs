//! `migrate`: removes rules of the Go plugins (containernetworking/plugins) for attachments that no
//! longer exist.
//!
//! Except for `firewall`, DEL of this suite's plugins changes no rules of the Go plugins. So rules
//! of pods that the Go plugins attached stay when DEL of this suite detaches the pods. A rule that
//! forwards a port then forwards it to an address that no pod has.

mod filter;
mod iptables;
mod nat;
mod nftables;
mod remnant;

use anyhow::Context as _;
use clap::Args;
use cni::{all, note};
use runtime::Directories;
use upkeep::Liveness;

use self::iptables::saved;
use self::remnant::{Remnant, Table};
use crate::reference::LiveAttachments;

/// Arguments of `migrate`.
#[derive(Debug, Args)]
pub struct Migrate {
    /// Remove rules of deleted sandboxes
    #[arg(long)]
    remove: bool,
}

impl Migrate {
    /// Calls `tell` with lines about the chains and rules of the Go plugins. With `--remove`,
    /// deletes the chains and rules of attachments that no longer exist.
    ///
    /// # Errors
    /// A firewall cannot be read or changed, the live attachments cannot be read, or `tell` fails.
    /// If one table cannot be changed, the others are still tried.
    pub fn run(
        &self,
        directories: &Directories,
        tell: impl Fn(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        // The tables are read before the leases. An ADD makes its lease before its rules. So if
        // rules of a concurrent ADD are seen, its lease is seen, too.
        let nat = saved("nat")?.into_iter().map(nat::table);
        let filter = saved("filter")?.into_iter().map(filter::table);
        let tables = nat.chain(filter).chain(nftables::tables()?);
        let tables: Vec<_> = tables.filter(Table::has_rules).collect();
        let attachments = LiveAttachments::read(directories)?;
        if tables.is_empty() {
            note("the firewall has no chains or rules of the Go plugins");
        }
        let outcomes = tables.iter().map(|table| {
            let lines = self.clean(table, &attachments);
            let lines = lines.with_context(|| table.place.to_string())?;
            lines.iter().try_for_each(|line| tell(line))
        });
        all(outcomes)
    }

    fn clean(&self, table: &Table, attachments: &LiveAttachments) -> anyhow::Result<Vec<String>> {
        let judge = |it: &Remnant| attachments.liveness(&it.mark, &it.addresses);
        let remnants = table.remnants.iter();
        let (kept, gone): (Vec<_>, Vec<_>) = remnants.partition(|it| judge(it) != Liveness::Gone);
        let is_in_use = !kept.is_empty() || table.bridges.iter().any(|it| attachments.is_on(it));
        let unused = table.shared.iter().filter(|_| !is_in_use);
        let commands = gone.iter().map(|it| &it.commands).chain(unused);
        let commands: Vec<_> = commands.flatten().cloned().collect();
        if self.remove && !commands.is_empty() {
            table.place.execute(commands)?;
        }
        let line = |state: &str, what: &str| format!("{state:<8}{}: {what}", table.place);
        let of = |state, it: &Remnant| line(state, &format!("{}, {}", it.name, it.owner));
        let state = if self.remove { "removed" } else { "gone" };
        let shared = if is_in_use {
            kept.is_empty().then_some("live")
        } else {
            Some(state)
        };
        let shared = shared.filter(|_| table.shared.is_some());
        let shared = shared.map(|it| line(it, "what all attachments shared"));
        let kept = kept.into_iter().map(|it| match judge(it) {
            Liveness::Unproven(reason) => of("unseen", it) + &format!(", may be live: {reason}"),
            _ => of("live", it),
        });
        let gone = gone.into_iter().map(|it| of(state, it));
        Ok(kept.chain(gone).chain(shared).collect())
    }
}
