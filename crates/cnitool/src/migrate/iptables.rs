//! Reads and changes chains of iptables with iptables' own programs, as an administrator would,
//! because these tables belong to the administrator and not to this suite.

use std::fs;

use node::output_of;

use super::remnant::Place;

/// The chains and rules of an iptables table, as `iptables-save` prints them. Each IP family has
/// its own tables, and so has each implementation of iptables: legacy and `nf_tables`.
#[derive(Debug)]
pub(super) struct Saved {
    pub place: Place,
    /// Names of the chains.
    pub chains: Vec<String>,
    /// Rules as `iptables-save` prints them, without `-A `.
    pub rules: Vec<String>,
}

/// Returns the tables with the name `table`: at most one for each IP family in `nf_tables`, and at
/// most one for each IP family in legacy iptables.
pub(super) fn saved(table: &'static str) -> anyhow::Result<Vec<Saved>> {
    let mut tables = Vec::new();
    for (program, names) in FAMILIES {
        let mut saved = vec![saved_by(format!("{program}-nft"), table)?];
        // A legacy table is read only if it exists, because `iptables-legacy-save` would create a
        // missing table.
        if is_listed(names, table) {
            saved.push(saved_by(format!("{program}-legacy"), table)?);
        }
        if saved.iter().all(Option::is_none) {
            saved.push(saved_by(program.to_owned(), table)?);
        }
        tables.extend(saved.into_iter().flatten());
    }
    Ok(tables)
}

/// Returns the table as `PROGRAM-save` prints it; `None` if that program is not installed.
fn saved_by(program: String, table: &'static str) -> anyhow::Result<Option<Saved>> {
    let saved = output_of(&[&format!("{program}-save"), "-t", table], b"")?;
    let place = Place::Iptables { program, table };
    Ok(saved.map(|it| Saved::parse(place, &String::from_utf8_lossy(&it))))
}

/// Returns whether the kernel has this table of legacy iptables. `names` is the path of the file in
/// which the kernel lists these tables.
fn is_listed(names: &str, table: &str) -> bool {
    let names = fs::read_to_string(names).unwrap_or_default();
    names.lines().any(|it| it == table)
}

impl Saved {
    pub fn parse(place: Place, saved: &str) -> Self {
        let rules = saved.lines().filter_map(|line| line.strip_prefix("-A "));
        let chains = saved.lines().filter_map(|line| line.strip_prefix(':'));
        let chains = chains.filter_map(|line| line.split(' ').next());
        Self {
            place,
            chains: chains.map(str::to_owned).collect(),
            rules: rules.map(str::to_owned).collect(),
        }
    }

    /// Returns the names in `chains` that are chains of the table.
    pub fn existing<'c>(&self, chains: &[&'c str]) -> Vec<&'c str> {
        let mut existing = chains.to_vec();
        existing.retain(|chain| self.chains.iter().any(|it| it == chain));
        existing
    }

    /// Returns the commands for [`Place::execute`] that delete these chains, their rules, and rules
    /// that jump to the chains.
    pub fn without_chains(&self, chains: &[&str]) -> Vec<String> {
        let into = |rule: &&String| chains.iter().any(|chain| leads_to(rule, chain));
        let from = |rule: &&String| chains.iter().any(|chain| is_in(rule, chain));
        let rules = self.rules.iter().filter(into).filter(|rule| !from(rule));
        let mut commands: Vec<_> = rules.map(|rule| format!("-D {rule}")).collect();
        for flag in ["-F", "-X"] {
            commands.extend(chains.iter().map(|chain| format!("{flag} {chain}")));
        }
        commands
    }
}

pub(super) fn is_in(rule: &str, chain: &str) -> bool {
    rule.split(' ').next() == Some(chain)
}

pub(super) fn leads_to(rule: &str, chain: &str) -> bool {
    rule.ends_with(&format!(" -j {chain}"))
}

/// For each IP family: the prefix of the names of iptables' programs, and the file in which the
/// kernel lists the tables of legacy iptables.
const FAMILIES: [(&str, &str); 2] = [
    ("iptables", "/proc/net/ip_tables_names"),
    ("ip6tables", "/proc/net/ip6_tables_names"),
];
