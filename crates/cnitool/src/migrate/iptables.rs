//! Reads and changes chains of iptables with iptables' own programs, as an administrator would,
//! because these tables belong to the administrator and not to this suite.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};

use node::output_of;

use super::remnant::{Remnant, Table};
use crate::reference::Mark;

/// The table `nat` of one family, in one of the two implementations of iptables.
#[derive(Debug)]
struct Nat {
    /// Prefix of the implementation's programs, such as `iptables-nft`.
    program: String,
    /// Rules as `iptables-save` prints them, without `-A `.
    rules: Vec<String>,
    remnants: Vec<Remnant>,
    shared: Vec<String>,
}

/// Returns the tables with rules of the reference.
pub(super) fn tables() -> anyhow::Result<Vec<Table>> {
    let mut tables = Vec::new();
    for (program, names) in FAMILIES {
        let mut saved = vec![saved_by(format!("{program}-nft"))?];
        // The table is read only if it exists, because `iptables-legacy-save` would create a
        // missing table.
        if is_listed(names) {
            saved.push(saved_by(format!("{program}-legacy"))?);
        }
        if saved.iter().all(Option::is_none) {
            saved.push(saved_by(program.to_owned())?);
        }
        tables.extend(saved.into_iter().flatten());
    }
    tables.retain(|nat: &Nat| !nat.remnants.is_empty() || !nat.shared.is_empty());
    Ok(tables.into_iter().map(Nat::table).collect())
}

/// Returns the rules that the program prints; `None` if it is not installed.
fn saved_by(program: String) -> anyhow::Result<Option<Nat>> {
    let saved = output_of(&[&format!("{program}-save"), "-t", "nat"], b"")?;
    Ok(saved.map(|it| Nat::parse(program, &String::from_utf8_lossy(&it))))
}

/// Returns whether the kernel has the table outside of `nf_tables`.
fn is_listed(names: &str) -> bool {
    let names = fs::read_to_string(names).unwrap_or_default();
    names.lines().any(|it| it == "nat")
}

impl Nat {
    fn parse(program: String, saved: &str) -> Self {
        let rules = saved.lines().filter_map(|line| line.strip_prefix("-A "));
        let rules: Vec<_> = rules.map(str::to_owned).collect();
        let chains = saved.lines().filter_map(|line| line.strip_prefix(':'));
        let chains = chains.filter_map(|line| line.split(' ').next());
        let (mut remnants, mut shared) = (Vec::new(), Vec::new());
        for chain in chains {
            if SHARED.contains(&chain) {
                shared.push(chain.to_owned());
            } else if let Some(mark) = Mark::of_chain(chain) {
                remnants.push(Remnant {
                    name: chain.to_owned(),
                    owner: owner(&rules, chain),
                    mark,
                    addresses: addresses(&rules, chain),
                });
            }
        }
        Self {
            program,
            rules,
            remnants,
            shared,
        }
    }

    /// Returns the script with which `iptables-restore` removes these chains. `iptables-restore`
    /// applies the whole script or nothing.
    fn script(&self, chains: &[&str]) -> String {
        let into = |rule: &&String| chains.iter().any(|chain| leads_to(rule, chain));
        let from = |rule: &&String| chains.iter().any(|chain| is_in(rule, chain));
        let rules = self.rules.iter().filter(into).filter(|rule| !from(rule));
        let mut script = vec!["*nat".to_owned()];
        script.extend(rules.map(|rule| format!("-D {rule}")));
        for flag in ["-F", "-X"] {
            script.extend(chains.iter().map(|chain| format!("{flag} {chain}")));
        }
        script.push("COMMIT\n".to_owned());
        script.join("\n")
    }

    fn table(self) -> Table {
        Table {
            title: format!("{}-save -t nat", self.program),
            remnants: self.remnants.clone(),
            is_shared: !self.shared.is_empty(),
            remove: Box::new(move |gone| {
                let mut chains: Vec<_> = gone.iter().map(|it| it.name.as_str()).collect();
                if gone.len() == self.remnants.len() {
                    chains.extend(self.shared.iter().map(String::as_str));
                }
                let restore = format!("{}-restore", self.program);
                let script = self.script(&chains);
                output_of(&[&restore, "--wait", "--noflush"], script.as_bytes()).map(drop)
            }),
        }
    }
}

/// Returns the comment of the rule that jumps to the chain, such as `name: "pods" id: "a"`. The
/// comment names the chain's owner.
fn owner(rules: &[String], chain: &str) -> String {
    let rule = rules.iter().find(|rule| leads_to(rule, chain));
    let named = rule.and_then(|rule| {
        let (_, rest) = rule.split_once("name: ")?;
        let (owner, _) = rest.split_once("\\\"\" ")?;
        Some(format!("name: {owner}\"").replace('\\', ""))
    });
    named.unwrap_or_else(|| "no rule jumps to it".to_owned())
}

/// Returns the single addresses in the chain's rules and in rules that jump to the chain. They have
/// the forms `10.1.0.2/32`, `10.1.0.2:80` and `[fd00::2]:80`.
fn addresses(rules: &[String], chain: &str) -> BTreeSet<IpAddr> {
    let rules = rules.iter();
    let of_chain = rules.filter(|rule| is_in(rule, chain) || leads_to(rule, chain));
    let words = of_chain.flat_map(|rule| rule.split(' '));
    words.filter_map(address).collect()
}

fn address(word: &str) -> Option<IpAddr> {
    let single = word.strip_suffix("/32").or(word.strip_suffix("/128"));
    let target = || word.parse().ok().map(|it: SocketAddr| it.ip());
    single.unwrap_or(word).parse().ok().or_else(target)
}

fn is_in(rule: &str, chain: &str) -> bool {
    rule.split(' ').next() == Some(chain)
}

fn leads_to(rule: &str, chain: &str) -> bool {
    rule.ends_with(&format!(" -j {chain}"))
}

/// Prefix of the programs of each family, and the file in which the kernel lists the family's
/// tables outside of `nf_tables`.
const FAMILIES: [(&str, &str); 2] = [
    ("iptables", "/proc/net/ip_tables_names"),
    ("ip6tables", "/proc/net/ip6_tables_names"),
];

/// Chains that portmap creates once for all ports.
const SHARED: [&str; 3] = [
    "CNI-HOSTPORT-DNAT",
    "CNI-HOSTPORT-MASQ",
    "CNI-HOSTPORT-SETMARK",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of `iptables-save` 1.8.9 for one pod of Debian's reference 1.1.1, and a chain of
    /// another program.
    const SAVED: &str = r#"*nat
:POSTROUTING ACCEPT [0:0]
:CNI-64e2b30124778559e7bbb4eb - [0:0]
:CNI-DN-64e2b30124778559e7bbb - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-MINE - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -s 10.1.0.2/32 -m comment --comment "name: \"pods\" id: \"a\"" -j CNI-64e2b30124778559e7bbb4eb
-A CNI-DN-64e2b30124778559e7bbb -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"pods\" id: \"a\"" -m multiport --dports 8080 -j CNI-DN-64e2b30124778559e7bbb
COMMIT
"#;

    #[test]
    fn chains_say_whose_they_are_and_those_of_others_are_none() {
        let nat = Nat::parse("iptables".to_owned(), SAVED);
        let found: Vec<_> = nat
            .remnants
            .iter()
            .map(|it| (it.name.as_str(), it.owner.as_str()))
            .collect();
        let owner = "name: \"pods\" id: \"a\"";
        assert_eq!(
            found,
            [
                ("CNI-64e2b30124778559e7bbb4eb", owner),
                ("CNI-DN-64e2b30124778559e7bbb", owner)
            ]
        );
        assert_eq!(nat.shared, ["CNI-HOSTPORT-DNAT"]);
        let pod = BTreeSet::from([IpAddr::from([10, 1, 0, 2])]);
        assert!(nat.remnants.iter().all(|it| it.addresses == pod), "{nat:?}");
    }

    #[test]
    fn addresses_are_single_ones() {
        for (word, is_single) in [
            ("10.1.0.2/32", true),
            ("10.1.0.2:80", true),
            ("[fd00:1::2]:80", true),
            ("fd00:1::2/128", true),
            ("10.1.0.0/24", false),
            ("8080", false),
            (":80", false),
        ] {
            assert_eq!(address(word).is_some(), is_single, "{word}");
        }
    }

    #[test]
    fn rules_that_lead_to_a_chain_go_before_it() {
        let nat = Nat::parse("iptables".to_owned(), SAVED);
        let script = nat.script(&["CNI-DN-64e2b30124778559e7bbb", "CNI-HOSTPORT-DNAT"]);
        let lines: Vec<_> = script.lines().collect();
        assert_eq!(
            lines,
            [
                "*nat",
                "-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
                "-F CNI-DN-64e2b30124778559e7bbb",
                "-F CNI-HOSTPORT-DNAT",
                "-X CNI-DN-64e2b30124778559e7bbb",
                "-X CNI-HOSTPORT-DNAT",
                "COMMIT"
            ]
        );
    }
}
