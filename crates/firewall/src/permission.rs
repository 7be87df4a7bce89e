//! The rules that accept packets with the plugin's fwmark, in chains where iptables may drop
//! packets. All attachments of a network share these rules, which are the same for each IP family.

use nft::{BaseChain, ChainKind, Family, Hook, RequiredChain, RequiredRule, RequiredRules};

use crate::{CHAIN, Config, iptables};

/// Returns the chains and rules for the table `filter` of iptables or ip6tables. The chain
/// `FORWARD` has the hook and priority that iptables gives it. So if the plugin creates this chain,
/// iptables later uses the same chain, for example to set its policy.
pub(crate) fn required(family: Family, config: &Config) -> RequiredRules {
    let admin = &config.admin_chain;
    let chain = |name: &str, rules| RequiredChain {
        name: name.to_owned(),
        base: None,
        rules,
    };
    let forwarded = RequiredRule::jump(CHAIN, "CNI firewall plugin rules");
    let overridden = RequiredRule::jump(admin, "CNI firewall plugin admin overrides");
    let accepted =
        RequiredRule::accept_marked(config.mark.bits(), "CNI firewall plugin permission");
    RequiredRules {
        family,
        table: "filter",
        comparison: iptables::comparison,
        chains: vec![
            RequiredChain {
                base: Some(BaseChain {
                    kind: ChainKind::Filter,
                    hook: Hook::Forward,
                    priority: FILTER,
                }),
                ..chain("FORWARD", vec![forwarded])
            },
            chain(admin, Vec::new()),
            chain(CHAIN, vec![overridden, accepted]),
        ],
    }
}

/// Priority of the chain `FORWARD` (`NF_IP_PRI_FILTER`).
const FILTER: i32 = 0;
