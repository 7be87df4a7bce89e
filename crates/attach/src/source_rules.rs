//! Policy rules that make the kernel route packets by their source address: the record of `sbr`, and
//! their removal. The daemon of `dhcp` changes them with an address.

use std::net::IpAddr;

use cni::{DelRequest, GOING_ON, Undo, or_note};
use netlink::{Connection, Request, Rule, found};
use serde::{Deserialize, Serialize};

use crate::{Reversible, SandboxRecord, Witness, make};

/// What an ADD of `sbr` adds to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRules {
    /// The sandbox, and the name of the interface there.
    pub sandbox: Witness,
    /// The rules, each with the table that it looks up.
    pub rules: Vec<Ruled>,
}

/// A source address and its table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ruled {
    /// The address.
    pub from: IpAddr,
    /// Number of the table.
    pub table: u32,
    /// ADD filled the table.
    pub is_own: bool,
}

impl SourceRules {
    /// Notes rules that are about to be added.
    pub fn note(&mut self, rules: &[Ruled]) {
        for ruled in rules {
            if !self.rules.contains(ruled) {
                self.rules.push(ruled.clone());
            }
        }
    }

    /// Gives the rules of the attachment `owner` that have the source `former` the source `new`. The
    /// caller has locked the sandbox.
    ///
    /// # Errors
    /// The kernel refuses a rule, or the record cannot be written.
    pub fn replace_source(
        owner: &str,
        connection: &Connection,
        [former, new]: [IpAddr; 2],
    ) -> anyhow::Result<()> {
        let Some(mut record) = Self::of_earlier_add(owner, connection) else {
            return Ok(());
        };
        let is_former = |it: &Ruled| it.from == former;
        let (old, kept): (Vec<_>, Vec<_>) = record.rules.iter().cloned().partition(is_former);
        let replaced = |it: &Ruled| Ruled {
            from: new,
            ..it.clone()
        };
        let replaced: Vec<_> = old.iter().map(replaced).collect();
        if replaced.is_empty() {
            return Ok(());
        }
        record.note(&replaced);
        record.write(owner)?;
        let mut undo = Undo::default();
        let missing = Ruled::additions(&replaced, &connection.rules()?);
        make(connection, missing, (&mut undo, "delete the rules"))?;
        delete_rules(connection, |rule| old.iter().any(|it| it.is(rule)))?;
        undo.keep();
        record.rules = kept;
        record.note(&replaced);
        record.write(owner)
    }
}

impl Ruled {
    /// Returns whether `rule` is this one.
    pub fn is(&self, rule: &Rule) -> bool {
        rule.table == self.table && is_rule_of(self.from, rule)
    }

    /// Returns the changes that add those of `wanted` that are not among `rules`.
    pub fn additions(wanted: &[Self], rules: &[Rule]) -> Vec<Reversible> {
        let missing = wanted
            .iter()
            .filter(|it| !rules.iter().any(|rule| it.is(rule)));
        let additions = missing.map(|it| {
            let deletion = Request::delete_rule(it.from.into(), it.table, None);
            Reversible::addition(Request::add_rule(it.from, it.table), deletion)
        });
        additions.collect()
    }
}

impl SandboxRecord for SourceRules {
    const DIRECTORY: &'static str = "/run/cni/sbr";
    const STEP: &'static str = "remove rules and tables";

    fn sandbox(&self) -> &Witness {
        &self.sandbox
    }

    fn revert(&self, connection: &Connection) -> anyhow::Result<()> {
        let rules = delete_rules(connection, |rule| self.rules.iter().any(|it| it.is(rule)));
        let Some(link) = connection.find_link(&self.sandbox.link)? else {
            return rules;
        };
        let is_own = |table| self.rules.iter().any(|it| it.is_own && it.table == table);
        let routes = connection.saved_routes()?.into_iter();
        let routes = routes.filter_map(|it| it.through(link.index));
        let routes = routes.filter(|it| is_own(it.route.table));
        let removals: Vec<_> = routes.map(|it| it.removal(link.index)).collect();
        let outcomes = connection.attempt(&removals)?.into_iter();
        let routes = cni::all(outcomes.map(|it| Ok(found(it).map(drop)?)));
        cni::all([rules, routes])
    }

    /// Deletes the rules for addresses of the interface, as the Go plugin does.
    fn revert_unrecorded(request: &DelRequest, connection: &Connection) -> anyhow::Result<()> {
        let keys = request.network.quiet_config().map(|it: Keys| it.table);
        let table = or_note(keys, GOING_ON).flatten();
        let interface = &request.attachment.interface;
        let link = connection.find_link(interface.as_str())?;
        let there = link.map(|it| connection.addresses(it.index)).transpose()?;
        let there = there.iter().flatten().map(|it| it.address.ip());
        let reported = request.prev_result.iter();
        let reported = reported.flat_map(|it| it.addresses_of(interface));
        let sources: Vec<IpAddr> = there.chain(reported.map(|it| it.address.ip())).collect();
        delete_rules(connection, |rule| {
            let is_in_table = table.is_none_or(|table| rule.table == table);
            is_in_table && sources.iter().any(|it| is_rule_of(*it, rule))
        })
    }
}

/// The only key that DEL needs, if there is no record.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Keys {
    table: Option<u32>,
}

/// Returns whether `rule` makes the kernel look up a table for packets from `source`.
pub fn is_rule_of(source: IpAddr, rule: &Rule) -> bool {
    rule.is_by_source_alone && rule.from == Some(source.into())
}

/// Deletes the rules that `is_ours` accepts.
fn delete_rules(connection: &Connection, is_ours: impl Fn(&Rule) -> bool) -> anyhow::Result<()> {
    let rules = connection.rules()?.into_iter().filter(|it| is_ours(it));
    let deletions =
        rules.filter_map(|it| Some(Request::delete_rule(it.from?, it.table, Some(it.priority))));
    let deletions: Vec<_> = deletions.collect();
    let outcomes = connection.attempt(&deletions)?.into_iter();
    cni::all(outcomes.map(|it| Ok(found(it).map(drop)?)))
}
