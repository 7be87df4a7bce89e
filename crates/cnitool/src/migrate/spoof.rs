//! Rules of the Go plugin `bridge` for `macspoofchk`, in the table `nat` of family `bridge`. Each
//! attachment has a rule in `PREROUTING` and two chains of its own.

use std::collections::{BTreeMap, BTreeSet};

use node::output_of;

use super::listing::Rule;
use super::remnant::{Remnant, Table};
use crate::reference::Mark;

/// Returns the rules of attachments. The table itself stays, as after DEL of the Go plugin: other
/// programs use it, too.
pub(super) fn table(rules: &[Rule]) -> Table {
    let mut attachments: BTreeMap<&str, Vec<&Rule>> = BTreeMap::new();
    for rule in rules {
        let comment = rule.comment.as_deref().unwrap_or_default();
        if let Some(id) = comment.strip_prefix(COMMENT) {
            attachments.entry(id).or_default().push(rule);
        }
    }
    let scripts: BTreeMap<_, _> = attachments
        .iter()
        .map(|(id, rules)| (chain(id), script(id, rules)))
        .collect();
    let remnants = attachments.iter().map(|(id, rules)| Remnant {
        name: chain(id),
        owner: format!("{COMMENT}{id}"),
        mark: Mark::Spoof((*id).to_owned(), rules.iter().find_map(|it| link(it))),
        addresses: BTreeSet::new(),
    });
    Table {
        title: format!("nft list table {FAMILY} {TABLE}"),
        remnants: remnants.collect(),
        is_shared: false,
        bridges: BTreeSet::new(),
        remove: Box::new(move |gone, _| {
            let scripts = gone.iter().filter_map(|it| scripts.get(&it.name));
            let script: String = scripts.map(String::as_str).collect();
            output_of(&["nft", "--file", "-"], script.as_bytes()).map(drop)
        }),
    }
}

/// Returns the commands for nft(8) that delete these rules of an attachment, and its chains.
fn script(id: &str, rules: &[&Rule]) -> String {
    let delete = |it: &&Rule| {
        format!(
            "delete rule {FAMILY} {TABLE} {} handle {}\n",
            it.chain, it.handle
        )
    };
    let chains = [chain(id), format!("{}-mac", chain(id))].into_iter();
    let chains = chains.filter(|chain| rules.iter().any(|it| it.chain == *chain));
    let chains = chains.map(|chain| format!("delete chain {FAMILY} {TABLE} {chain}\n"));
    rules.iter().map(delete).chain(chains).collect()
}

/// Returns the host's link that a rule in `PREROUTING` compares the input interface with.
fn link(rule: &Rule) -> Option<String> {
    let name = rule.expr.pointer("/0/match/right")?.as_str()?;
    (rule.chain == "PREROUTING").then(|| name.to_owned())
}

fn chain(id: &str) -> String {
    format!("cni-br-iface-{id}")
}

pub(super) const FAMILY: &str = "bridge";
pub(super) const TABLE: &str = "nat";

/// Start of the comment of each of these rules. The container ID, `-` and the interface follow.
const COMMENT: &str = "macspoofchk-";
