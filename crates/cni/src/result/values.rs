//! The parts of a result.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::spelling::{cidr, index, text};
use crate::InterfaceName;

/// The result of an ADD, and the `prevResult` of the next plugin in a chain.
///
/// Unknown keys are kept on every level, so that the next plugins of a chain receive them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AddResult {
    /// Interfaces, in the order of their creation.
    pub interfaces: Vec<Interface>,
    /// Addresses of the container.
    pub ips: Vec<IpConfig>,
    /// Routes of the container.
    pub routes: Vec<Route>,
    /// Name resolution.
    pub dns: Dns,
    /// Unknown keys, kept for the next plugins of the chain.
    #[serde(rename = "*", skip_serializing)]
    pub extra: Map<String, Value>,
}

/// An interface, on the host or in the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Hardware address, as `ip link` prints it.
    #[serde(default, deserialize_with = "text")]
    pub mac: Option<String>,
    /// MTU in bytes; specification 1.1.0.
    pub mtu: Option<u32>,
    /// Path of the sandbox; `None` on the host.
    #[serde(default, deserialize_with = "text")]
    pub sandbox: Option<String>,
    /// Path of the socket, if the interface is a socket; specification 1.1.0.
    #[serde(default, deserialize_with = "text")]
    pub socket_path: Option<String>,
    /// PCI address; specification 1.1.0.
    #[serde(rename = "pciID", default, deserialize_with = "text")]
    pub pci_id: Option<String>,
    /// Unknown keys, kept for the next plugins of the chain.
    #[serde(rename = "*", skip_serializing)]
    pub extra: Map<String, Value>,
}

/// An address with its prefix length.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpConfig {
    /// Index of the address's interface in [`AddResult::interfaces`]; `None` if it is unknown.
    #[serde(default, deserialize_with = "index")]
    pub interface: Option<usize>,
    /// The address with its prefix length and host bits: `10.1.0.5/24`.
    #[serde(deserialize_with = "cidr")]
    pub address: IpNetwork,
    /// The gateway in the subnet of the address; `None` if the result names none.
    #[serde(default, deserialize_with = "text")]
    pub gateway: Option<IpAddr>,
    /// Unknown keys, kept for the next plugins of the chain.
    #[serde(rename = "*", skip_serializing)]
    pub extra: Map<String, Value>,
}

/// Keys of an interface since specification 1.1.0.
pub(super) const SINCE_1_1_0: [&str; 3] = ["mtu", "socketPath", "pciID"];

impl AddResult {
    /// Returns the interface `name` in the sandbox, with its index in `interfaces`. Returns `None`
    /// if the result does not list it.
    pub fn in_sandbox(&self, name: &InterfaceName) -> Option<(usize, &Interface)> {
        let mut interfaces = self.interfaces.iter().enumerate();
        interfaces.find(|(_, it)| it.sandbox.is_some() && it.name == name.as_str())
    }

    /// Returns the addresses of the interface `name`. An address counts, too, if the result does not
    /// name its interface.
    pub fn addresses_of(&self, name: &InterfaceName) -> impl Iterator<Item = &IpConfig> {
        self.ips.iter().filter(move |it| {
            let named = it.interface.and_then(|index| self.interfaces.get(index));
            named.is_none_or(|it| it.name == name.as_str())
        })
    }
}

impl IpConfig {
    /// Creates an address without an interface and without a gateway.
    pub fn of(address: IpNetwork) -> Self {
        Self {
            interface: None,
            address,
            gateway: None,
            extra: Map::new(),
        }
    }
}

/// A route. Results of all versions may contain the attributes of specification 1.1.0: `mtu`,
/// `advmss`, `priority`, `table` and `scope`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The destination.
    #[serde(deserialize_with = "cidr")]
    pub dst: IpNetwork,
    /// The next hop. `None` means the gateway of the container's address of the same family.
    #[serde(default, deserialize_with = "text")]
    pub gw: Option<IpAddr>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Advertised TCP segment size (MSS) in bytes.
    pub advmss: Option<u32>,
    /// The metric.
    pub priority: Option<u32>,
    /// The routing table.
    pub table: Option<u32>,
    /// The scope, as in rtnetlink(7): 0 universe, 253 link, 254 host.
    pub scope: Option<u8>,
    /// Unknown keys, kept for the next plugins of the chain.
    #[serde(rename = "*", skip_serializing)]
    pub extra: Map<String, Value>,
}

impl Route {
    /// Creates a route with only a destination.
    pub fn to(dst: IpNetwork) -> Self {
        Self {
            dst,
            gw: None,
            mtu: None,
            advmss: None,
            priority: None,
            table: None,
            scope: None,
            extra: Map::new(),
        }
    }
}

/// Name resolution, as in resolv.conf(5).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// Addresses of name servers, in order.
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(default, deserialize_with = "text")]
    pub domain: Option<String>,
    /// Domains to search.
    pub search: Vec<String>,
    /// Options such as `ndots:5`.
    pub options: Vec<String>,
    /// Unknown keys, kept for the next plugins of the chain.
    #[serde(rename = "*", skip_serializing)]
    pub extra: Map<String, Value>,
}

impl Dns {
    /// Returns whether no key is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
