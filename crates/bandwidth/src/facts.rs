//! What the tools know of the plugin.

use cni::json;
use facts::{
    Argument, Consequence, Elements, Facts, Keys, MissingFeature, Need, Proof, Scope, ScopedTask,
    Task, lacks_all, read,
};
use netlink::Connection;

use crate::backstop::{TABLE, tables};
use crate::check::warnings;
use crate::record::limits_egress;
use crate::{PLUGIN, POD_ANNOTATIONS, RawConfig};

/// What cnitool and the agent know of the plugin.
pub const FACTS: Facts = Facts {
    tables: &[Elements {
        table: TABLE,
        tables: || tables().into(),
        need: Need {
            keys: &[],
            consequence: Consequence::LimitedAddFails,
        },
        are_expected: |added| limits_egress(added.owner),
        proof: Proof::Record(limits_egress),
    }],
    missing_features,
    argument: Some(Argument {
        capabilities: &[CAPABILITY, POD_ANNOTATIONS],
        is_needed: |keys| lacks_all(keys, &["ingressRate", "egressRate", "podResources"]),
        is_required: false,
        impact: "The runtime passes it no rates, so pods silently have no limits.",
    }),
    tasks: limits,
    warnings: |keys| read(keys).map_or_else(Vec::new, |raw| warnings(&raw)),
    ..Facts::of(PLUGIN.name)
};

/// The capability with which a runtime passes rates.
pub const CAPABILITY: &str = "bandwidth";

/// Returns the limits that the plugin may set. Its own keys win over those of the runtime.
fn limits(keys: &Keys, capabilities: &[String]) -> Vec<ScopedTask> {
    let own: RawConfig = read(keys).unwrap_or_default();
    let mut declared = capabilities.iter();
    let is_asked = declared.any(|it| [CAPABILITY, POD_ANNOTATIONS].contains(&it.as_str()));
    let is_allocated = json::value(keys, "podResources").is_some_and(|it| *it != false);
    let of = |task, rate: Option<u64>| match rate {
        Some(rate) if rate > 0 => Some((task, Scope::All)),
        _ if is_allocated || is_asked && !own.is_given() => Some((task, Scope::Asking)),
        _ => None,
    };
    let limits = [
        of(Task::LimitIngress, own.ingress_rate),
        of(Task::LimitEgress, own.egress_rate),
    ];
    limits.into_iter().flatten().collect()
}

fn missing_features() -> anyhow::Result<Vec<MissingFeature>> {
    let modules = tc::missing(&Connection::open()?)?.into_iter();
    let missing = modules.map(|module| {
        let keys: &[_] = match module {
            tc::module::HTB => &["shapedSubnets", "unshapedSubnets"],
            _ => &[],
        };
        let consequence = match module {
            tc::module::FQ_CODEL => Consequence::OneQueue,
            _ => Consequence::LimitedAddFails,
        };
        MissingFeature {
            reason: format!("the kernel lacks {module}"),
            plugins: Vec::new(),
            need: Need { keys, consequence },
            modules: vec![module],
        }
    });
    Ok(missing.collect())
}
