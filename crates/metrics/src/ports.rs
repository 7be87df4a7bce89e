//! Ports of the host that are forwarded to pods.

use std::collections::{BTreeMap, BTreeSet};

use nft::Protocol;
use node::{Node, Traces};

use crate::family::{Family, Metric};
use crate::label::Text;

/// Counts the ports of the host that are forwarded to pods, by network and protocol. A port that is
/// forwarded for both IP versions counts once. A network whose list has a plugin that
/// forwards ports, but without ports, counts 0.
pub(crate) fn count(node: &Node, traces: &BTreeMap<String, Traces<'_>>) -> Vec<Metric> {
    let sources = node.configuration.sources();
    let forwarding = sources.filter(|it| node::facts(&it.plugin.program).takes("portMappings"));
    let unused = forwarding.flat_map(|it| ["tcp", "udp"].map(|protocol| [it.name(), protocol]));
    let mut ports: BTreeMap<_, u64> = unused.map(|it| (it.map(Text::from), 0)).collect();
    for (owner, traces) in traces {
        let forwarded = traces.elements.iter().filter_map(|it| it.port);
        let forwarded = forwarded.map(|it| (it.port.protocol, it.port.port, it.port.address));
        let forwarded: BTreeSet<_> = forwarded.collect();
        let [network, ..] = traces.names(owner);
        for (protocol, ..) in forwarded {
            let name = Protocol::of_number(protocol);
            let name = name.map_or_else(|| protocol.to_string(), |it| it.to_string());
            *ports.entry([network, &name].map(Text::from)).or_default() += 1;
        }
    }
    vec![PORTS.by(["network", "protocol"], ports)]
}

const PORTS: Family = Family::gauges(
    "cni_host_ports",
    "Ports of the host that are forwarded to pods, each once for both IP versions.",
);
