//! Reads and changes, with `nft`, the tables of `nf_tables` that newer versions of the Go plugins
//! create, and the rules of the Go plugin `bridge` for `macspoofchk`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::Context as _;
use node::{REFERENCE_TABLES, output_of};
use serde::Deserialize;
use serde_json::Value;

use super::remnant::{Place, Remnant, Table};
use crate::reference::Mark;

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

/// Returns the tables with rules of the Go plugins that exist in `nf_tables`, with the rules of
/// single attachments. The table of `macspoofchk` itself stays, as after DEL of the Go plugin: other
/// programs use it, too.
pub(super) fn tables() -> anyhow::Result<Vec<Table>> {
    let listed = list(&["tables"])?.into_iter();
    let listed: Vec<_> = listed.filter_map(|it| it.table).collect();
    let known = REFERENCE_TABLES.map(|(family, name)| (family.name(), name));
    let mut known = [&known[..], &[SPOOF]].concat();
    known.retain(|place| {
        let mut listed = listed.iter();
        listed.any(|it| (it.family.as_str(), it.name.as_str()) == *place)
    });
    let tables = known.into_iter().map(|(family, name)| {
        let rules = list(&["table", family, name])?.into_iter();
        let rules = rules.filter_map(|it| it.rule);
        let is_spoof = (family, name) == SPOOF;
        let place = format!("{family} {name}");
        Ok(Table {
            shared: (!is_spoof).then(|| vec![format!("delete table {place}")]),
            remnants: if is_spoof {
                spoof_remnants(rules, &place)
            } else {
                rules.filter_map(|it| it.remnant(&place, name)).collect()
            },
            place: Place::Nft(place),
            bridges: BTreeSet::new(),
        })
    });
    tables.collect()
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
    fn remnant(self, place: &str, table: &str) -> Option<Remnant> {
        let name = self.name();
        let comment = self.comment?;
        Some(Remnant {
            commands: vec![format!("delete rule {place} {name}")],
            name,
            mark: Mark::of_rule(table, &comment)?,
            owner: comment,
            addresses: addresses(&self.expr),
        })
    }

    fn name(&self) -> String {
        format!("{} handle {}", self.chain, self.handle)
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

/// Returns a [`Remnant`] for each attachment with rules for `macspoofchk`: a rule in `PREROUTING`,
/// and two chains of its own.
fn spoof_remnants(rules: impl Iterator<Item = Rule>, place: &str) -> Vec<Remnant> {
    let mut attachments = BTreeMap::<_, Vec<_>>::new();
    for rule in rules {
        let comment = rule.comment.as_deref().unwrap_or_default();
        if let Some(id) = comment.strip_prefix(SPOOF_COMMENT).map(str::to_owned) {
            attachments.entry(id).or_default().push(rule);
        }
    }
    let remnants = attachments.into_iter().map(|(id, rules)| {
        let chain = format!("cni-br-iface-{id}");
        let chains = [chain.clone(), format!("{chain}-mac")].into_iter();
        let chains = chains.filter(|chain| rules.iter().any(|it| it.chain == *chain));
        let chains = chains.map(|chain| format!("delete chain {place} {chain}"));
        let delete = |it: &Rule| format!("delete rule {place} {}", it.name());
        Remnant {
            name: chain,
            owner: format!("{SPOOF_COMMENT}{id}"),
            mark: Mark::Spoof(id, rules.iter().find_map(input_link)),
            addresses: BTreeSet::new(),
            commands: rules.iter().map(delete).chain(chains).collect(),
        }
    });
    remnants.collect()
}

/// Returns the host's link that a rule in `PREROUTING` compares the input interface with.
fn input_link(rule: &Rule) -> Option<String> {
    let name = rule.expr.pointer("/0/match/right")?.as_str()?;
    (rule.chain == "PREROUTING").then(|| name.to_owned())
}

/// Family and name of the table that the Go plugin `bridge` uses for `macspoofchk`.
const SPOOF: (&str, &str) = ("bridge", "nat");

/// Start of the comment of each of the rules for `macspoofchk`. The container ID, `-` and the
/// interface follow.
const SPOOF_COMMENT: &str = "macspoofchk-";
