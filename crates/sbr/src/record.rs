//! What an ADD adds to a sandbox: its record, and its removal.

use std::net::IpAddr;

use attach::{SandboxRecord, Witness};
use cni::{DelRequest, GOING_ON, or_note};
use netlink::{Connection, Request, Rule, found};
use serde::{Deserialize, Serialize};

use crate::desired::{Source, addresses, is_rule_of};

/// What an ADD adds to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
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

impl Record {
    /// Adds the tables of the sources.
    pub(crate) fn add(&mut self, assigned: &[(Source, u32)], is_own: bool) {
        for (source, table) in assigned {
            let ruled = Ruled {
                from: source.address.ip(),
                table: *table,
                is_own,
            };
            if !self.rules.contains(&ruled) {
                self.rules.push(ruled);
            }
        }
    }
}

impl SandboxRecord for Record {
    const DIRECTORY: &'static str = "/run/cni/sbr";
    const STEP: &'static str = "remove rules and tables";

    fn sandbox(&self) -> &Witness {
        &self.sandbox
    }

    fn revert(&self, connection: &Connection) -> anyhow::Result<()> {
        let rules = delete_rules(connection, |rule| {
            let mut recorded = self.rules.iter();
            recorded.any(|it| it.table == rule.table && is_rule_of(it.from, rule))
        });
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
        let reported = reported.flat_map(|it| addresses(it, interface));
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

/// Deletes the rules that `is_ours` accepts.
fn delete_rules(connection: &Connection, is_ours: impl Fn(&Rule) -> bool) -> anyhow::Result<()> {
    let rules = connection.rules()?.into_iter().filter(|it| is_ours(it));
    let deletions =
        rules.filter_map(|it| Some(Request::delete_rule(it.from?, it.table, Some(it.priority))));
    let deletions: Vec<_> = deletions.collect();
    let outcomes = connection.attempt(&deletions)?.into_iter();
    cni::all(outcomes.map(|it| Ok(found(it).map(drop)?)))
}
