//! Ports of the host that are forwarded to pods.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use nft::Protocol;
use node::{Node, Traces};

use crate::attachments::names;
use crate::family::{Family, Writer};
use crate::label::Text;

/// Numbers of host ports by network and protocol.
#[derive(Debug, Default)]
pub(crate) struct Ports(BTreeMap<[Text; 2], u64>);

impl Ports {
    /// Counts the ports. A port that is forwarded for both IP versions counts once.
    pub fn of(node: &Node, traces: &BTreeMap<String, Traces<'_>>) -> Self {
        let mut ports = Self::default();
        for (_, network) in node.configuration.networks() {
            if network
                .list
                .plugins
                .iter()
                .any(|it| it.program == "portmap")
            {
                let name = Text::new(network.list.name.as_str());
                for protocol in ["tcp", "udp"] {
                    let labels = [name.clone(), Text::new(protocol)];
                    ports.0.entry(labels).or_default();
                }
            }
        }
        for (owner, traces) in traces {
            let forwarded = traces.elements.iter().filter_map(|it| it.port);
            let forwarded = forwarded.map(|it| (it.port.protocol, it.port.port, it.port.address));
            let forwarded: BTreeSet<_> = forwarded.collect();
            let [network, ..] = names(owner, traces.cached);
            for (protocol, ..) in forwarded {
                let name = Protocol::of_number(protocol);
                let name = name.map_or_else(|| protocol.to_string(), |it| it.to_string());
                let labels = [network.clone(), Text::new(&name)];
                *ports.0.entry(labels).or_default() += 1;
            }
        }
        ports
    }

    pub fn encode(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let samples = self.0.iter().map(|([network, protocol], it)| {
            let labels = [
                ("network", network.as_str()),
                ("protocol", protocol.as_str()),
            ];
            (labels, *it)
        });
        writer.gauges(&PORTS, samples)
    }
}

const PORTS: Family = Family {
    name: "cni_host_ports",
    unit: None,
    help: "Ports of the host that are forwarded to pods, each once for both IP versions.",
};
