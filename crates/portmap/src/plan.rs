//! What will be done: a pure function from what was asked and what the plugins before this
//! one did.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use cni::result::{AddResult, IpConfig};
use cni::{InterfaceName, note};
use nft::{Destination, IpVersion};

use crate::config::{Config, Mapping, Protocol, SourceNat, version_of};

/// What will be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Each port that leads somewhere, once.
    pub forwards: Vec<Forward>,
    /// The mappings that lead nowhere, since the container has no address of their family.
    pub idle: Vec<Mapping>,
    source_nat: SourceNat,
}

/// A port of the host, for one family, and where it leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Forward {
    /// The host's port.
    pub port: HostPort,
    /// The container's address, of the same family.
    pub pod: IpAddr,
    /// The container's port.
    pub container_port: u16,
}

/// A port of the host, for one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// The family.
    pub version: IpVersion,
    /// The host's address; `None` for all of them.
    pub address: Option<IpAddr>,
    /// Number of the protocol.
    pub protocol: u8,
    /// The port.
    pub port: u16,
}

impl Plan {
    /// Decides which port leads where.
    pub fn new(config: &Config, result: &AddResult, interface: &InterfaceName) -> Self {
        let pods = pods(result, interface);
        let (mut forwards, mut idle) = (Vec::new(), Vec::new());
        for mapping in &config.mappings {
            let pods = pods.iter().copied();
            let concerned = pods.filter(|pod| mapping.is_for(*pod));
            let before = forwards.len();
            forwards.extend(concerned.map(|pod| Forward::new(mapping, pod)));
            if forwards.len() == before {
                idle.push(*mapping);
            }
        }
        let mut seen = HashSet::new();
        forwards.retain(|forward| seen.insert(*forward));
        Self {
            forwards,
            idle,
            source_nat: config.source_nat,
        }
    }

    /// Says which mappings lead nowhere: as in the reference that is no error.
    pub fn tell_of_idle(&self) {
        for mapping in &self.idle {
            note(format_args!(
                "{mapping} leads nowhere: the container has no address of that family"
            ));
        }
    }

    /// The container's addresses that a port leads to, each once.
    pub fn pods(&self) -> Vec<IpAddr> {
        let mut pods: Vec<_> = self.forwards.iter().map(|it| it.pod).collect();
        pods.sort_unstable();
        pods.dedup();
        pods
    }

    /// The container's address to which 127.0.0.1 leads by some port: the host's link towards
    /// it has to let packets from there out.
    pub fn localnet(&self) -> Option<Ipv4Addr> {
        let is_local = |it: &&Forward| it.port.address.is_none_or(|it| it.is_loopback());
        let mut local = self.forwards.iter().filter(is_local);
        local.find_map(|forward| match forward.pod {
            IpAddr::V4(pod) if self.source_nat != SourceNat::None => Some(pod),
            _ => None,
        })
    }
}

impl Forward {
    fn new(mapping: &Mapping, pod: IpAddr) -> Self {
        let address = match mapping.host {
            crate::config::HostAddress::One(address) => Some(address),
            _ => None,
        };
        Self {
            port: HostPort {
                version: version_of(pod),
                address,
                protocol: mapping.protocol.number(),
                port: mapping.host_port.get(),
            },
            pod,
            container_port: mapping.container_port.get(),
        }
    }
}

impl HostPort {
    /// The first packets of its connections go there.
    pub fn destination(self) -> Destination {
        Destination {
            version: self.version,
            address: self.address,
            protocol: self.protocol,
            port: self.port,
        }
    }

    /// Returns protocol and port without the address, as in `tcp port 8080`.
    pub fn name(self) -> String {
        match Protocol::of_number(self.protocol) {
            Some(protocol) => format!("{protocol} port {}", self.port),
            None => format!("port {} of protocol {}", self.port, self.protocol),
        }
    }

    /// What runs over it has connections that never end while somebody sends, as every
    /// datagram goes on with one: they would never hear of a change.
    pub fn is_connectionless(self) -> bool {
        self.protocol == Protocol::Udp.number()
    }

    /// The same port, of every address of the host.
    pub fn of_every_address(self) -> Self {
        Self {
            address: None,
            ..self
        }
    }
}

impl std::fmt::Display for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())?;
        match (self.address, self.version) {
            (Some(address), _) => write!(f, " of {address}"),
            (None, IpVersion::V4) => f.write_str(" of every IPv4 address"),
            (None, IpVersion::V6) => f.write_str(" of every IPv6 address"),
        }
    }
}

/// The container's addresses, one of each family: the first that the interface bears, or, where
/// the result does not tell interfaces apart, the first that no link of the host does.
fn pods(result: &AddResult, interface: &InterfaceName) -> Vec<IpAddr> {
    let link = |ip: &IpConfig| ip.interface.and_then(|it| result.interfaces.get(it));
    let is_own = |ip: &&IpConfig| {
        link(ip).is_some_and(|it| it.name == interface.as_str() && it.sandbox.is_some())
    };
    let is_inside = |ip: &&IpConfig| link(ip).is_none_or(|it| it.sandbox.is_some());
    let first = |version: IpVersion| {
        let of_version = |ip: &&IpConfig| version_of(ip.address.ip()) == version;
        let candidates = || result.ips.iter().filter(of_version);
        let found = candidates().find(is_own).or(candidates().find(is_inside));
        found.map(|ip| ip.address.ip())
    };
    [IpVersion::V4, IpVersion::V6]
        .into_iter()
        .filter_map(first)
        .collect()
}

#[cfg(test)]
mod tests;
