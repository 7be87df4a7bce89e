//! Reads and changes, with `nft`, the tables of `nf_tables` that newer versions of the Go plugins
//! create.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::Context as _;
use node::{REFERENCE_TABLES, output_of};
use serde::Deserialize;
use serde_json::Value;

use super::remnant::{Remnant, Shared, Table};
use crate::reference::Mark;

/// The output of `nft --json`. Objects other than tables and rules are skipped.
#[derive(Debug, Deserialize)]
struct Listing {
    nftables: Vec<Object>,
}

#[derive(Debug, Deserialize)]
struct Object {
    table: Option<TableName>,
    rule: Option<Rule>,
}

#[derive(Debug, Deserialize)]
struct TableName {
    family: String,
    name: String,
}

#[derive(Debug, Deserialize)]
struct Rule {
    chain: String,
    handle: u64,
    comment: Option<String>,
    #[serde(default)]
    expr: Value,
}

/// Returns the tables of the Go plugins that exist in `nf_tables`, with their rules for single
/// attachments.
pub(super) fn tables() -> anyhow::Result<Vec<Table>> {
    let listed = list(&["tables"])?;
    let mut tables = Vec::new();
    for (family, name) in REFERENCE_TABLES {
        let family = family.name();
        let mut names = listed.iter().filter_map(|it| it.table.as_ref());
        if names.any(|it| it.family == family && it.name == name) {
            let listing = list(&["table", family, name])?;
            let rules = listing.into_iter().filter_map(|it| it.rule);
            let remnants = rules.filter_map(|it| it.remnant(name)).collect();
            tables.push(table(format!("{family} {name}"), remnants));
        }
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

fn list(what: &[&str]) -> anyhow::Result<Vec<Object>> {
    let words = [&["nft", "--json", "--handle", "list"], what].concat();
    let Some(text) = output_of(&words, b"")? else {
        return Ok(Vec::new());
    };
    let listing: Listing = serde_json::from_slice(&text).with_context(|| words.join(" "))?;
    Ok(listing.nftables)
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
