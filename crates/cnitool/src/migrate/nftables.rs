//! Reads and changes the tables of `nf_tables` that newer versions of the reference create with
//! `nft`, also with `nft`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

use super::program::{carry_out, output_of};
use super::remnant::{Remnant, Table};
use crate::reference::{Mark, TABLES};

/// One of the reference's tables.
#[derive(Debug)]
pub struct OwnTable {
    /// `ip cni_hostport`.
    title: String,
    /// Its rules, named `CHAIN handle NUMBER`.
    remnants: Vec<Remnant>,
}

/// The output of `nft --json`; other objects are skipped.
#[derive(Debug, Default, Deserialize)]
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

/// Returns the existing tables of the reference.
pub fn tables() -> anyhow::Result<Vec<OwnTable>> {
    let there = list(&["tables"])?.nftables;
    let there: Vec<_> = there.into_iter().filter_map(|it| it.table).collect();
    let mut tables = Vec::new();
    for (family, name) in TABLES {
        if there
            .iter()
            .any(|it| it.family == family && it.name == name)
        {
            let listing = list(&["table", family, name])?;
            let rules = listing.nftables.into_iter().filter_map(|it| it.rule);
            tables.push(OwnTable {
                title: format!("{family} {name}"),
                remnants: rules.filter_map(|it| it.remnant(name)).collect(),
            });
        }
    }
    Ok(tables)
}

fn list(what: &[&str]) -> anyhow::Result<Listing> {
    let words = [&["nft", "--json", "--handle", "list"], what].concat();
    match output_of(&words)? {
        Some(text) => serde_json::from_str(&text).with_context(|| words.join(" ")),
        None => Ok(Listing::default()),
    }
}

impl Rule {
    /// Returns the remnant of a rule with a comment. Rules that all attachments share have none.
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

impl Table for OwnTable {
    fn title(&self) -> String {
        format!("nft list table {}", self.title)
    }

    fn remnants(&self) -> &[Remnant] {
        &self.remnants
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn remove(&self, gone: &[&Remnant]) -> anyhow::Result<()> {
        let delete = |it: &&Remnant| format!("delete rule {} {}\n", self.title, it.name);
        let mut script: Vec<_> = gone.iter().map(delete).collect();
        if gone.len() == self.remnants.len() {
            script.push(format!("delete table {}\n", self.title));
        }
        carry_out(&["nft", "--file", "-"], &script.concat())
    }
}

/// Returns single addresses in the expressions of a rule; networks are below `prefix`.
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
