//! An attachment as its traces tell of it, which are brought together by its tag.
//!
//! What no trace tells stays open: nothing is concluded.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::SystemTime;

use cni::{Attachment, SpecVersion};
use netlink::{Link, LinkKind};
use node::{Attached, Held, HostPort, Lease, Node};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// An attachment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The network's name.
    pub network: Option<String>,
    /// The container ID.
    pub container: Option<String>,
    /// The pod, where the runtime told.
    pub pod: Option<Pod>,
    /// The interface in the sandbox.
    pub interface: Option<String>,
    /// Its addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// The host's end of its pair.
    pub host_link: Option<String>,
    /// Ports of the host that lead to it.
    pub ports: BTreeSet<String>,
    /// In bits a second.
    pub limits: Limits,
    /// When it was attached.
    #[serde(serialize_with = "time")]
    pub since: Option<SystemTime>,
    /// Who knows of it.
    pub known_by: BTreeSet<Trace>,
}

/// A pod of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pod {
    /// `K8S_POD_NAMESPACE`
    pub namespace: String,
    /// `K8S_POD_NAME`
    pub name: String,
}

/// What it may receive and send, in bits a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// What it receives.
    pub ingress: Option<u64>,
    /// What it sends.
    pub egress: Option<u64>,
}

/// Where an attachment is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Trace {
    /// The results that runtimes remember.
    Cache,
    /// A link that bears its tag.
    Link,
    /// An element of `nf_tables` that does.
    Element,
    /// An address that it holds.
    Lease,
}

impl Row {
    /// All that the node knows of, by network, container and interface.
    pub fn all(node: &Node) -> Vec<Self> {
        let mut rows = BTreeMap::<String, Self>::new();
        for attached in &node.attached {
            let row = rows.entry(attached.attachment.owner()).or_default();
            row.add_cached(attached, node);
        }
        for link in &node.links {
            if let Some(owner) = link.alias.as_ref().filter(|it| Attachment::is_owner(it)) {
                row_of(&mut rows, owner).add_link(link, node);
            }
        }
        for element in &node.firewall.elements {
            if !element.owner.is_empty() {
                row_of(&mut rows, &element.owner).add_element(element);
            }
        }
        for lease in &node.leases {
            row_of(&mut rows, &holder(node, lease)).add_lease(lease);
        }
        let mut rows: Vec<_> = rows.into_values().collect();
        let name = |row: &Self| {
            (
                row.network.clone(),
                row.container.clone(),
                row.interface.clone(),
            )
        };
        rows.sort_by_key(name);
        rows
    }

    fn add_cached(&mut self, attached: &Attached, node: &Node) {
        let attachment = &attached.attachment;
        self.known_by.insert(Trace::Cache);
        self.network = Some(attachment.network.to_string());
        self.container = Some(attachment.container.to_string());
        self.interface = Some(attachment.interface.to_string());
        self.since = attached.since;
        self.pod = Pod::of(&attached.entry.arguments().cni);
        self.ports.extend(asked_ports(attached, node));
        let result = attached.entry.result(SpecVersion::CURRENT).ok().flatten();
        let result = result.unwrap_or_default();
        let list = |key: &str| {
            result
                .get(key)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
        };
        let addresses = attached.addresses().into_iter();
        self.addresses.extend(addresses.map(|it| it.ip()));
        let on_host = list("interfaces").filter(|it| {
            let sandbox = it.get("sandbox").and_then(Value::as_str);
            sandbox.unwrap_or_default().is_empty()
        });
        let names = on_host.filter_map(|it| it.get("name")?.as_str());
        let links = names.filter_map(|it| node.link_called(it));
        let mut pairs = links.filter(|it| it.kind == LinkKind::Veth);
        self.host_link = pairs.next().map(|it| it.name.clone());
        if let Some(link) = &self.host_link {
            self.limits.ingress = node.limits.get(link).copied();
        }
    }

    fn add_link(&mut self, link: &Link, node: &Node) {
        self.known_by.insert(Trace::Link);
        let limit = node.limits.get(&link.name).copied();
        if link.kind == LinkKind::Ifb {
            self.limits.egress = limit;
            return;
        }
        self.limits.ingress = limit;
        self.host_link = Some(link.name.clone());
    }

    fn add_element(&mut self, element: &Held) {
        self.known_by.insert(Trace::Element);
        self.ports.extend(element.port.as_ref().map(port_name));
        self.addresses.extend(element.address);
    }

    fn add_lease(&mut self, lease: &Lease) {
        self.known_by.insert(Trace::Lease);
        self.network.get_or_insert_with(|| lease.network.clone());
        if let Some((container, interface)) = &lease.holder {
            self.container.get_or_insert_with(|| container.to_string());
            if let Some(interface) = interface {
                self.interface.get_or_insert_with(|| interface.to_string());
            }
        }
        self.addresses.insert(lease.address);
        self.since = self.since.or(lease.since);
    }
}

impl Pod {
    fn of(arguments: &[[String; 2]]) -> Option<Self> {
        let value = |name: &str| {
            let mut pairs = arguments.iter();
            pairs.find_map(|[key, value]| (key == name).then(|| value.clone()))
        };
        Some(Self {
            namespace: value("K8S_POD_NAMESPACE")?,
            name: value("K8S_POD_NAME")?,
        })
    }
}

/// The row that bears this tag, with the names that stand in it.
fn row_of<'r>(rows: &'r mut BTreeMap<String, Row>, owner: &str) -> &'r mut Row {
    rows.entry(owner.to_owned()).or_insert_with(|| {
        let mut names = owner
            .strip_prefix("cni:")
            .unwrap_or_default()
            .splitn(3, '/');
        let mut name = || names.next().filter(|it| !it.is_empty()).map(str::to_owned);
        Row {
            network: name(),
            container: name(),
            interface: name(),
            ..Row::default()
        }
    })
}

/// The tag of the lease's holder; that of the cached attachment, where the lease names no interface.
fn holder(node: &Node, lease: &Lease) -> String {
    let of_cached = || {
        let mut attached = node.attached.iter();
        let attached = attached.find(|it| lease.is_of(&it.attachment))?;
        Some(attached.attachment.owner())
    };
    let container = || match &lease.holder {
        Some((container, _)) => format!("cni:{}/{container}/", lease.network),
        None => lease.path.display().to_string(),
    };
    lease.owner().or_else(of_cached).unwrap_or_else(container)
}

/// `8080:80/tcp`, and before it the one address of the host that it is of.
fn port_name(port: &HostPort) -> String {
    let name = port.name();
    let protocol = name.split(" port ").next().unwrap_or_default();
    let ports = format!("{}:{}/{protocol}", port.port, port.to.1);
    match port.address {
        Some(IpAddr::V6(address)) => format!("[{address}]:{ports}"),
        Some(IpAddr::V4(address)) => format!("{address}:{ports}"),
        None => ports,
    }
}

/// The ports that a plugin of its list was told of: runtimes tell every network of the pod's, also the
/// one that has nothing but `lo`.
fn asked_ports(attached: &Attached, node: &Node) -> Vec<String> {
    let network = attached.network(&node.configuration);
    let plugins = network.iter().flat_map(|it| &it.plugins);
    let arguments = attached.entry.arguments();
    let told = plugins.map(|it| arguments.runtime_config(&it.capabilities));
    let asked = told.filter_map(|mut it| it.remove("portMappings"));
    let asked = asked.filter_map(|it| it.as_array().cloned()).flatten();
    asked.filter_map(|it| asked_port(&it)).collect()
}

/// As [`port_name`], of what the runtime asked for, in any case.
fn asked_port(mapping: &Value) -> Option<String> {
    let mapping = mapping.as_object()?;
    let key = |name| cni::json::value(mapping, name);
    let port = |name| key(name).and_then(Value::as_u64);
    let protocol = key("protocol").and_then(Value::as_str).unwrap_or("tcp");
    let ports = format!(
        "{}:{}/{}",
        port("hostPort")?,
        port("containerPort")?,
        protocol.to_lowercase()
    );
    let address: Option<IpAddr> = key("hostIP")
        .and_then(Value::as_str)
        .and_then(|it| it.parse().ok());
    Some(match address.filter(|it| !it.is_unspecified()) {
        Some(IpAddr::V6(address)) => format!("[{address}]:{ports}"),
        Some(IpAddr::V4(address)) => format!("{address}:{ports}"),
        None => ports,
    })
}

/// RFC 3339, in seconds.
#[expect(clippy::ref_option, reason = "serde calls it so")]
fn time<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    let text = time.map(|it| humantime::format_rfc3339_seconds(it).to_string());
    text.serialize(serializer)
}

#[cfg(test)]
mod tests;
