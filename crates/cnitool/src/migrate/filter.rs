//! Rules of the Go plugin `firewall` in the table `filter` of iptables.
//!
//! Each address of a container has two rules in `CNI-FORWARD`. Each bridge with `ingressPolicy` has
//! rules in `CNI-ISOLATION-STAGE-1` and `CNI-ISOLATION-STAGE-2`. `migrate` never deletes the chains
//! `CNI-FORWARD` and `CNI-ADMIN`: this suite's `firewall` uses the first one, and the rules in the
//! second one are the operator's.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::iptables::{Saved, is_in};
use super::remnant::{Remnant, Table};
use crate::reference::Mark;

/// Returns the rules of the Go plugin `firewall` in the table `filter`.
pub(super) fn table(saved: Saved) -> Table {
    let bridges = bridges(&saved);
    let isolating = saved.existing(&ISOLATING);
    Table {
        remnants: remnants(&saved.rules),
        shared: bridges.as_ref().map(|_| saved.without_chains(&isolating)),
        bridges: bridges.unwrap_or_default(),
        place: saved.place,
    }
}

/// Returns a [`Remnant`] for each address with both rules of the Go plugin in `CNI-FORWARD`. Leaves
/// out an address with only one of them, because an operator may have added that rule.
fn remnants(rules: &[String]) -> Vec<Remnant> {
    let from = |rule: &String| {
        let rest = rule.strip_prefix("CNI-FORWARD -s ")?;
        let (address, _) = rest.split_once('/')?;
        address.parse::<IpAddr>().ok()
    };
    let addresses: BTreeSet<_> = rules.iter().filter_map(from).collect();
    let is_complete = |it: &IpAddr| rules_of(*it).iter().all(|rule| rules.contains(rule));
    let remnants = addresses.into_iter().filter(is_complete);
    let remnants = remnants.map(|address| Remnant {
        name: "CNI-FORWARD".to_owned(),
        owner: address.to_string(),
        mark: Mark::Address(address),
        addresses: BTreeSet::from([address]),
        commands: rules_of(address).map(|it| format!("-D {it}")).to_vec(),
    });
    remnants.collect()
}

/// Returns the two rules of the Go plugin `firewall` that accept packets from and to an address, as
/// `iptables-save` prints them.
fn rules_of(address: IpAddr) -> [String; 2] {
    let prefix = if address.is_ipv4() { 32 } else { 128 };
    let answers = "-m conntrack --ctstate RELATED,ESTABLISHED";
    [
        format!("CNI-FORWARD -d {address}/{prefix} {answers} -j ACCEPT"),
        format!("CNI-FORWARD -s {address}/{prefix} -j ACCEPT"),
    ]
}

/// Returns the bridges in the rules of the two chains for `ingressPolicy`. Returns `None` if
/// neither chain exists, or if a chain has a rule of another program.
fn bridges(saved: &Saved) -> Option<BTreeSet<String>> {
    let mut chains = saved.chains.iter();
    let are_there = chains.any(|it| ISOLATING.contains(&it.as_str()));
    let is_isolating = |rule: &&String| ISOLATING.iter().any(|chain| is_in(rule, chain));
    let rules: Vec<_> = saved.rules.iter().filter(is_isolating).collect();
    let are_own = rules.iter().all(|it| it.contains(COMMENT));
    if !are_there || !are_own {
        return None;
    }
    let bridges = rules.iter().filter_map(|rule| {
        let (_, rest) = rule.split_once(" -i ")?;
        Some(rest.split(' ').next()?.to_owned())
    });
    Some(bridges.collect())
}

const ISOLATING: [&str; 2] = ["CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"];

/// Start of the comments of all rules that the Go plugin adds to the chains in `ISOLATING`. The
/// policy follows: `same-bridge` and, since 1.7.0, `isolated` or `same-bridge|isolated`.
const COMMENT: &str = "CNI firewall plugin rules (ingressPolicy: ";
