//! The result of an ADD, in memory always in the newest form.

mod read;
mod write;

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde_json::{Map, Value};

pub use read::read;

/// What an ADD hands back, and what the next plugin of a chain is given as `prevResult`.
///
/// Keys that this suite does not know are kept beside the known ones on every level, so
/// that they survive a chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddResult {
    /// Every interface that was made, in the order in which they were made.
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
    /// Its name.
    pub name: String,
    /// Its hardware address, as `ip link` prints it.
    pub mac: Option<String>,
    /// In bytes; specification 1.1.0.
    pub mtu: Option<u32>,
    /// The sandbox's path; `None` on the host.
    pub sandbox: Option<String>,
    /// Path of a socket, for interfaces that are one; specification 1.1.0.
    pub socket_path: Option<String>,
    /// PCI address; specification 1.1.0.
    pub pci_id: Option<String>,
    /// Unknown keys.
    pub extra: Map<String, Value>,
}

/// An address with the length of its network's prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpConfig {
    /// Index into [`AddResult::interfaces`].
    pub interface: Option<usize>,
    /// The address, its host bits kept.
    pub address: IpNetwork,
    /// The gateway of its network.
    pub gateway: Option<IpAddr>,
    /// Unknown keys.
    pub extra: Map<String, Value>,
}

impl IpConfig {
    /// An address of an interface that is not known yet.
    pub fn of(address: IpNetwork) -> Self {
        Self {
            interface: None,
            address,
            gateway: None,
            extra: Map::new(),
        }
    }
}

/// A route, with the attributes of specification 1.1.0, which results of every version carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The destination.
    pub dst: IpNetwork,
    /// The next hop; the gateway of the address of that family where it is absent.
    pub gw: Option<IpAddr>,
    /// Bytes.
    pub mtu: Option<u32>,
    /// Bytes of TCP payload.
    pub advmss: Option<u32>,
    /// The metric.
    pub priority: Option<u32>,
    /// The routing table.
    pub table: Option<u32>,
    /// As in rtnetlink(7): 0 universe, 253 link, 254 host.
    pub scope: Option<u8>,
    /// Unknown keys.
    pub extra: Map<String, Value>,
}

impl Route {
    /// A route with a destination and nothing else.
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

/// Name resolution, as resolv.conf(5) has it.
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
    /// Nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
