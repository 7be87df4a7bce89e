//! Rules of the backstop (the second egress limit in `nf_tables`) for a limit that applies only to
//! some subnets. They limit the same packets as the filters of the qdisc, with one exception: the
//! rules can read the address of a packet with a VLAN tag.

use cni::hex;
use ipnetwork::IpNetwork;
use nft::{Chain, Rule};
use sha2::{Digest as _, Sha256};
use tc::{Case, Traffic};

/// Returns the chain that limits only `traffic`; `None` if all traffic is limited. The chain's name
/// contains a digest of the subnets, so all attachments with the same subnets share the chain. The
/// function `limited` adds the limit to a rule.
///
/// The chain also limits packets whose address it cannot read: packets that are not IP, and packets
/// that are too short to contain an address.
pub(crate) fn of(traffic: &Traffic, limited: impl Fn(Rule) -> Rule) -> Option<Chain> {
    if *traffic == Traffic::All {
        return None;
    }
    let cases = outermost(&traffic.cases());
    let rules = cases.iter().map(|(subnet, case)| match case {
        Case::Limited => limited(Rule::new("limited").when_frame_to(*subnet)),
        Case::Unlimited => Rule::new("not limited")
            .when_frame_to(*subnet)
            .return_to_caller(),
    });
    let rules = rules.chain([limited(Rule::new("all else is limited"))]);
    let digits = hex(&Sha256::digest(format!("{cases:?}")), 12);
    Some(Chain::regular(format!("policy-{digits}"), rules.collect()))
}

/// Returns `cases` without each subnet that lies within another subnet of the same [`Case`]. If
/// both subnets were limited, a packet to the inner one would match two rules and count twice.
fn outermost(cases: &[(IpNetwork, Case)]) -> Vec<(IpNetwork, Case)> {
    let mut outermost = cases.to_owned();
    outermost.retain(|(inner, case)| {
        let mut others = cases.iter().filter(|(_, other)| other == case);
        !others.any(|(outer, _)| outer.prefix() < inner.prefix() && outer.contains(inner.network()))
    });
    outermost
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnets(texts: &[&str]) -> Vec<IpNetwork> {
        texts.iter().map(|it| it.parse().unwrap()).collect()
    }

    #[test]
    fn no_packet_comes_to_two_rules_with_the_limit() {
        let nested = subnets(&["10.1.0.0/16", "10.0.0.0/8", "fd00::/8", "10.1.2.0/24"]);
        let cases = outermost(&Traffic::Only(nested).cases());
        let limited = cases.iter().filter(|(_, case)| *case == Case::Limited);
        let limited: Vec<_> = limited.map(|(subnet, _)| *subnet).collect();
        assert_eq!(limited, subnets(&["10.0.0.0/8", "fd00::/8"]));
    }

    #[test]
    fn chain_is_shared_by_the_same_subnets_alone() {
        let chain = |traffic| of(&traffic, Rule::drop).map(|it| it.name);
        let one = subnets(&["10.0.0.0/8"]);
        let only = chain(Traffic::Only(one.clone()));
        assert_eq!(only, chain(Traffic::Only(one.clone())));
        assert_ne!(only, chain(Traffic::AllBut(one)));
        assert_eq!(chain(Traffic::All), None);
    }
}
