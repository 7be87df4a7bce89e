//! Reads `nf_tables` with `nft`.

use anyhow::Context as _;
use node::output_of;
use serde::Deserialize;
use serde_json::Value;

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

/// A table.
#[derive(Debug, Deserialize)]
pub(super) struct TableName {
    pub family: String,
    pub name: String,
}

/// A rule.
#[derive(Debug, Deserialize)]
pub(super) struct Rule {
    pub chain: String,
    pub handle: u64,
    pub comment: Option<String>,
    #[serde(default)]
    pub expr: Value,
}

/// Returns all tables; none if nft(8) is not installed.
pub(super) fn tables() -> anyhow::Result<Vec<TableName>> {
    let listed = list(&["tables"])?.into_iter();
    Ok(listed.filter_map(|it| it.table).collect())
}

/// Returns the rules of a table.
pub(super) fn rules(family: &str, table: &str) -> anyhow::Result<Vec<Rule>> {
    let listed = list(&["table", family, table])?.into_iter();
    Ok(listed.filter_map(|it| it.rule).collect())
}

fn list(what: &[&str]) -> anyhow::Result<Vec<Object>> {
    let words = [&["nft", "--json", "--handle", "list"], what].concat();
    let Some(text) = output_of(&words, b"")? else {
        return Ok(Vec::new());
    };
    let listing: Listing = serde_json::from_slice(&text).with_context(|| words.join(" "))?;
    Ok(listing.nftables)
}
