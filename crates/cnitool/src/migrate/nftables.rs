//! Reads and changes, with `nft`, the tables of `nf_tables` that newer versions of the Go plugins
//! create.

use std::collections::BTreeSet;
use std::net::IpAddr;

use node::{REFERENCE_TABLES, output_of};
use serde_json::Value;

use super::listing::{self, Rule};
use super::remnant::{Remnant, Shared, Table};
use super::spoof;
use crate::reference::Mark;

/// Returns the tables of the Go plugins that exist in `nf_tables`, with their rules for single
/// attachments.
pub(super) fn tables() -> anyhow::Result<Vec<Table>> {
    let listed = listing::tables()?;
    let mut tables = Vec::new();
    for (family, name) in REFERENCE_TABLES {
        let family = family.name();
        if listed
            .iter()
            .any(|it| it.family == family && it.name == name)
        {
            let rules = listing::rules(family, name)?.into_iter();
            let remnants = rules.filter_map(|it| it.remnant(name)).collect();
            tables.push(table(format!("{family} {name}"), remnants));
        }
    }
    if listed
        .iter()
        .any(|it| it.family == spoof::FAMILY && it.name == spoof::TABLE)
    {
        tables.push(spoof::table(&listing::rules(spoof::FAMILY, spoof::TABLE)?));
    }
    Ok(tables)
}

/// Returns a [`Table`] for the table `name` of `nf_tables`, such as `ip cni_hostport`. Each of
/// `remnants` is one rule, with the name `CHAIN handle NUMBER`.
fn table(name: String, remnants: Vec<Remnant>) -> Table {
    Table {
        title: format!("nft list table {name}"),
        remnants,
        is_shared: true,
        bridges: BTreeSet::new(),
        remove: Box::new(move |gone, shared| {
            let delete = |it: &&Remnant| format!("delete rule {name} {}\n", it.name);
            let mut script: Vec<_> = gone.iter().map(delete).collect();
            if shared == Shared::Remove {
                script.push(format!("delete table {name}\n"));
            }
            let script = script.concat();
            output_of(&["nft", "--file", "-"], script.as_bytes()).map(drop)
        }),
    }
}

impl Rule {
    /// Returns this rule as a [`Remnant`]. Returns `None` if the rule has no comment that
    /// identifies an attachment, because such a rule is for all attachments.
    fn remnant(self, table: &str) -> Option<Remnant> {
        let comment = self.comment?;
        Some(Remnant {
            name: format!("{} handle {}", self.chain, self.handle),
            mark: Mark::of_rule(table, &comment)?,
            owner: comment,
            addresses: addresses(&self.expr),
        })
    }
}

/// Returns the single addresses in the expressions of a rule. Skips the addresses of networks,
/// which nft's JSON puts into an object `prefix`.
fn addresses(expressions: &Value) -> BTreeSet<IpAddr> {
    match expressions {
        Value::String(text) => text.parse().into_iter().collect(),
        Value::Array(all) => all.iter().flat_map(addresses).collect(),
        Value::Object(keys) => {
            let single = keys.iter().filter(|(key, _)| *key != "prefix");
            single.flat_map(|(_, value)| addresses(value)).collect()
        }
        _ => BTreeSet::new(),
    }
}
