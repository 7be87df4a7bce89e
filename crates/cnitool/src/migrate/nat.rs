//! Chains of the Go plugin `portmap`, and of the masquerading of the Go plugins `bridge` and `ptp`,
//! in the table `nat` of iptables.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::iptables::{Saved, is_in, leads_to};
use super::remnant::{Remnant, Table};
use crate::reference::Mark;

/// Returns the Go plugins' chains in the table `nat`.
pub(super) fn table(saved: Saved) -> Table {
    let shared = saved.existing(&SHARED);
    Table {
        remnants: remnants(&saved),
        shared: (!shared.is_empty()).then(|| saved.without_chains(&shared)),
        bridges: BTreeSet::new(),
        place: saved.place,
    }
}

/// Returns a [`Remnant`] for each chain that a Go plugin made for a single attachment.
fn remnants(saved: &Saved) -> Vec<Remnant> {
    let remnants = saved.chains.iter().filter_map(|chain| {
        Some(Remnant {
            name: chain.clone(),
            owner: owner(&saved.rules, chain),
            mark: Mark::of_chain(chain)?,
            addresses: addresses(&saved.rules, chain),
            commands: saved.without_chains(&[chain.as_str()]),
        })
    });
    remnants.collect()
}

/// Returns the network's name and the container ID of the chain's attachment, such as
/// `name: "pods" id: "a"`. They are in the comment of the rule that jumps to the chain. If there is
/// no rule with such a comment, returns `no rule jumps to it`.
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

/// Chains that the Go plugin `portmap` creates once for all ports.
const SHARED: [&str; 3] = [
    "CNI-HOSTPORT-DNAT",
    "CNI-HOSTPORT-MASQ",
    "CNI-HOSTPORT-SETMARK",
];

#[cfg(test)]
mod tests {
    use super::super::remnant::Place;
    use super::*;

    /// The output of `iptables-save` 1.8.9 for one pod of Debian's containernetworking-plugins
    /// 1.1.1, and a chain of another program.
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

    fn place() -> Place {
        let program = "iptables".to_owned();
        let table = "nat";
        Place::Iptables { program, table }
    }

    #[test]
    fn chains_say_whose_they_are_and_those_of_others_are_none() {
        let saved = Saved::parse(place(), SAVED);
        let remnants = remnants(&saved);
        let found: Vec<_> = remnants
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
        assert_eq!(saved.existing(&SHARED), ["CNI-HOSTPORT-DNAT"]);
        let pod = BTreeSet::from([IpAddr::from([10, 1, 0, 2])]);
        assert!(
            remnants.iter().all(|it| it.addresses == pod),
            "{remnants:?}"
        );
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
        let saved = Saved::parse(place(), SAVED);
        let lines = saved.without_chains(&["CNI-DN-64e2b30124778559e7bbb", "CNI-HOSTPORT-DNAT"]);
        assert_eq!(
            lines,
            [
                "-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
                "-F CNI-DN-64e2b30124778559e7bbb",
                "-F CNI-HOSTPORT-DNAT",
                "-X CNI-DN-64e2b30124778559e7bbb",
                "-X CNI-HOSTPORT-DNAT",
            ]
        );
    }
}
