//! One line of `cnitool ps`: all traces of one attachment, combined. Traces are cached results,
//! links, elements of `nf_tables` and leases.
//!
//! A field stays empty if no trace has its value.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::SystemTime;

use ipnetwork::IpNetwork;
use netlink::{Link, LinkKind};
use node::{Attached, Node, Traces};
use portmap::{Forward, HostAddress, Mapping, Protocol};
use runtime::Arguments;
use serde::{Serialize, Serializer};
use serde_json::Value;
use upkeep::{Candidate, Liveness, liveness};

/// One line of `cnitool ps`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The network's name.
    pub network: Option<String>,
    /// The container ID.
    pub container: Option<String>,
    /// The pod, if the runtime passed its name in `CNI_ARGS`.
    pub pod: Option<Pod>,
    /// The interface in the sandbox.
    pub interface: Option<String>,
    /// Whether the attachment is live.
    pub state: State,
    /// The addresses of the interface.
    pub addresses: BTreeSet<IpAddr>,
    /// The host's end of the veth pair.
    pub host_link: Option<String>,
    /// Ports of the host that are forwarded to the sandbox, or that the runtime requested, such as
    /// `8080:80/tcp`.
    pub ports: BTreeSet<String>,
    pub limits: Limits,
    /// When the cached result was last written. If this time is unknown, when the lease was last
    /// written.
    #[serde(serialize_with = "time")]
    pub since: Option<SystemTime>,
    /// The kinds of traces that the node has of the attachment.
    pub known_by: BTreeSet<Trace>,
}

/// Whether an attachment is live, as `cnitool gc` judges it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, derive_more::Display)]
#[display(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its sandbox exists, or its link on the host.
    Live,
    /// Its ADD may be running: a lease is young.
    New,
    /// It may be live.
    #[default]
    Unknown,
    /// Its sandbox does not exist.
    Gone,
}

impl State {
    fn of(owner: &str, traces: &Traces<'_>, node: &Node) -> Self {
        let candidate = Candidate::of_traces(owner, traces);
        match candidate.map(|it| liveness(node, &it)) {
            Some(Liveness::Live) => Self::Live,
            Some(Liveness::Young) => Self::New,
            Some(Liveness::Gone) => Self::Gone,
            Some(Liveness::Unproven(_)) | None => Self::Unknown,
        }
    }
}

/// A pod of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pod {
    /// `K8S_POD_NAMESPACE`
    pub namespace: String,
    /// `K8S_POD_NAME`
    pub name: String,
}

/// Limits of the sandbox's traffic, in bits per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Limit of the traffic that the sandbox receives.
    pub ingress: Option<u64>,
    /// Limit of the traffic that the sandbox sends.
    pub egress: Option<u64>,
}

/// A kind of trace that an attachment leaves on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Trace {
    /// A result that a runtime cached.
    Cache,
    /// A link whose alias names the attachment.
    Link,
    /// An element of `nf_tables` whose comment names the attachment.
    Element,
    /// An address that is leased to the attachment.
    Lease,
    /// A record of a link that lives in the sandbox alone.
    Record,
}

impl Row {
    /// Returns all attachments of the node, sorted by network, container and interface.
    pub fn all(node: &Node) -> Vec<Self> {
        let traces = node.traces().into_iter();
        let tagged = traces.filter(|(owner, _)| !owner.is_empty());
        let rows = tagged.map(|(owner, traces)| Self::of(&owner, &traces, node));
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by_key(|it| [&it.network, &it.container, &it.interface].map(Clone::clone));
        rows
    }

    /// Combines the traces of the attachment with the tag `owner`. Network, container and interface
    /// come from the cached result or, without one, from the tag.
    fn of(owner: &str, traces: &Traces<'_>, node: &Node) -> Self {
        let known = |name: &str| Some(name.to_owned()).filter(|it| !it.is_empty());
        let [network, container, interface] = traces.names(owner).map(known);
        let mut row = Self {
            network,
            container,
            interface,
            state: State::of(owner, traces, node),
            limits: Limits {
                egress: node.egress_limits.get(owner).map(bits),
                ingress: None,
            },
            ..Self::default()
        };
        if let Some(attached) = traces.cached {
            row.add_cached(attached, node);
        }
        for link in &traces.links {
            row.known_by.insert(Trace::Link);
            row.add_link(link, node);
        }
        for element in &traces.elements {
            row.known_by.insert(Trace::Element);
            row.ports.extend(element.port.map(port_of));
            row.addresses.extend(element.address);
        }
        if traces.witness.is_some() {
            row.known_by.insert(Trace::Record);
        }
        for lease in &traces.leases {
            row.known_by.insert(Trace::Lease);
            row.network.get_or_insert_with(|| lease.network.clone());
            row.addresses.insert(lease.address);
            row.since = row.since.or(lease.since);
        }
        row
    }

    fn add_cached(&mut self, attached: &Attached, node: &Node) {
        self.known_by.insert(Trace::Cache);
        self.since = attached.since;
        self.pod = Pod::of(&attached.entry.arguments);
        self.ports.extend(asked_ports(attached, node));
        let addresses = attached.addresses();
        self.addresses.extend(addresses.iter().map(IpNetwork::ip));
        let links = attached.entry.host_links();
        let mut links = links.iter().filter_map(|it| node.link_called(it));
        if let Some(link) = links.find(|it| it.kind == LinkKind::Veth) {
            self.add_link(link, node);
        }
    }

    fn add_link(&mut self, link: &Link, node: &Node) {
        self.limits.ingress = node.limits.get(&link.index).map(bits);
        self.host_link = Some(link.name.clone());
    }
}

fn bits(limit: &node::CountedLimit) -> u64 {
    limit.rate.saturating_mul(8)
}

impl Pod {
    fn of(arguments: &Arguments) -> Option<Self> {
        Some(Self {
            namespace: arguments.cni_value("K8S_POD_NAMESPACE")?.to_owned(),
            name: arguments.cni_value("K8S_POD_NAME")?.to_owned(),
        })
    }
}

fn port_of(forward: Forward) -> String {
    let port = forward.port;
    let protocol = Protocol::of_number(port.protocol);
    let protocol = protocol.map_or_else(|| port.protocol.to_string(), |it| it.to_string());
    port_name(port.address, [port.port, forward.container_port], &protocol)
}

/// Returns the port as `8080:80/tcp`, or as `ADDRESS:8080:80/tcp` if it is forwarded for a single
/// address of the host.
fn port_name(address: Option<IpAddr>, [host, container]: [u16; 2], protocol: &str) -> String {
    let address = address.map(|it| SocketAddr::new(it, host).to_string());
    let host = address.unwrap_or_else(|| host.to_string());
    format!("{host}:{container}/{protocol}")
}

/// Returns the ports that the runtime requested. Returns none if no plugin in the attachment's list
/// has the capability `portMappings`, because runtimes pass the pod's ports even to a list that
/// forwards none, such as one with only `loopback`.
fn asked_ports(attached: &Attached, node: &Node) -> Vec<String> {
    let network = attached.network(&node.configuration);
    let plugins = network.iter().flat_map(|it| &it.plugins);
    let arguments = &attached.entry.arguments;
    let passed = plugins.map(|it| arguments.runtime_config(&it.capabilities));
    let asked = passed.filter_map(|mut it| it.remove("portMappings"));
    let asked = asked.filter_map(|it| it.as_array().cloned()).flatten();
    asked.filter_map(|it| asked_port(&it)).collect()
}

/// Returns a port that the runtime requested, in the form of [`port_name`]; `None` if it is
/// invalid.
fn asked_port(mapping: &Value) -> Option<String> {
    let mapping = Mapping::parse(mapping).ok()?;
    let address = match mapping.host {
        HostAddress::One(address) => Some(address),
        HostAddress::Any | HostAddress::AnyOf(_) => None,
    };
    let ports = [mapping.host_port, mapping.container_port].map(NonZeroU16::get);
    Some(port_name(address, ports, &mapping.protocol.to_string()))
}

/// Serializes the time in the format of RFC 3339, with a precision of one second.
#[expect(clippy::ref_option, reason = "serde calls it so")]
fn time<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    let text = time.map(|it| humantime::format_rfc3339_seconds(it).to_string());
    text.serialize(serializer)
}

#[cfg(test)]
mod tests;
