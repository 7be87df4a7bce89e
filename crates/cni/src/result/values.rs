//! What a result consists of.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde_json::{Map, Value};

/// The result of an ADD, and the `prevResult` of the next plugin in a chain.
///
/// Unknown keys are kept beside the known ones on every level, so they survive a chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddResult {
    /// Interfaces, in the order of their creation.
    pub interfaces: Vec<Interface>,
    /// Addresses of the container.
    pub ips: Vec<IpConfig>,
    /// Routes of the container.
    pub routes: Vec<Route>,
    /// Name resolution.
    pub dns: Dns,
    /// Unknown keys.
    pub extra: Map<String, Value>,
}

/// An interface, on the host or in the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Hardware address, as `ip link` prints it.
    pub mac: Option<String>,
    /// MTU in bytes; specification 1.1.0.
    pub mtu: Option<u32>,
    /// Path of the sandbox; `None` on the host.
    pub sandbox: Option<String>,
    /// Path of the socket, for an interface that is one; specification 1.1.0.
    pub socket_path: Option<String>,
    /// PCI address; specification 1.1.0.
    pub pci_id: Option<String>,
    /// Unknown keys.
    pub extra: Map<String, Value>,
}

/// An address with its prefix length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpConfig {
    /// Index into [`AddResult::interfaces`].
    pub interface: Option<usize>,
    /// The address, with its host bits.
    pub address: IpNetwork,
    /// The gateway of its network.
    pub gateway: Option<IpAddr>,
    /// Unknown keys.
    pub extra: Map<String, Value>,
}

impl IpConfig {
    /// Creates an address without an interface.
    pub fn of(address: IpNetwork) -> Self {
        Self {
            interface: None,
            address,
            gateway: None,
            extra: Map::new(),
        }
    }
}

/// A route. It has the attributes of specification 1.1.0 in results of every version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The destination.
    pub dst: IpNetwork,
    /// The next hop. `None` means the gateway of the address of that family.
    pub gw: Option<IpAddr>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// TCP payload in bytes.
    pub advmss: Option<u32>,
    /// The metric.
    pub priority: Option<u32>,
    /// The routing table.
    pub table: Option<u32>,
    /// The scope, as in rtnetlink(7): 0 universe, 253 link, 254 host.
    pub scope: Option<u8>,
    /// Unknown keys.
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dns {
    /// Addresses of name servers, in order.
    pub nameservers: Vec<String>,
    /// The local domain.
    pub domain: Option<String>,
    /// Domains to search.
    pub search: Vec<String>,
    /// Options such as `ndots:5`.
    pub options: Vec<String>,
    /// Unknown keys.
    pub extra: Map<String, Value>,
}

impl Dns {
    /// Returns whether no value is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
