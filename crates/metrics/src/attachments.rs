//! Counts attachments.

use std::collections::BTreeMap;

use netlink::LinkKind;
use node::{Node, Traces, Witnessed};

use crate::family::{Family, Metric};
use crate::label::Text;

/// Counts the live attachments of each network. An attachment is live if its sandbox exists, as the
/// cached result or its record shows, or if a veth of the host is tagged with it. A configured network without attachments counts 0.
pub(crate) fn count(node: &Node, traces: &BTreeMap<String, Traces<'_>>) -> Vec<Metric> {
    let configured = node.configuration.networks();
    let names = configured.map(|(_, it)| [Text::from(it.list.name.as_str())]);
    let mut live: BTreeMap<_, u64> = names.map(|it| (it, 0)).collect();
    for (owner, traces) in traces {
        let is_cached = traces.cached.is_some_and(|it| it.is_alive);
        let has_link = traces.links.iter().any(|it| it.kind == LinkKind::Veth);
        let has_sandbox = traces.witness == Some(&Witnessed::Present);
        if is_cached || has_link || has_sandbox {
            let [network, ..] = traces.names(owner);
            *live.entry([network.into()]).or_default() += 1;
        }
    }
    vec![LIVE.by(["network"], live)]
}

const LIVE: Family = Family::gauges(
    "cni_attachments",
    "Live attachments: their sandbox exists, or a veth of the host is tagged with them.",
);
