//! Decides which ports to forward, from the configuration and `prevResult`, without side effects.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use cni::result::{AddResult, IpConfig};
use cni::{AddRequest, Error, InterfaceName, note};
use nft::{HostPort, IpVersion};

use crate::config::SourceNat;
use crate::{Config, HostAddress, Mapping};

/// The ports to forward for one request, and the configuration that asks for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The ports that are forwarded, without duplicates.
    pub forwards: Vec<Forward>,
    /// The network's configuration.
    pub config: Config,
}

/// A port of the host, for one IP family, and its destination: a port of the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Forward {
    /// The host's port.
    pub port: HostPort,
    /// The container's address, of the IP family of `port`.
    pub pod: IpAddr,
    /// The container's port.
    pub container_port: u16,
}

impl Plan {
    /// Returns the plan for `request`; `None` if there is nothing to forward. If the container has
    /// no address of a mapping's IP family, the function omits the mapping and reports that on
    /// standard error. As in the Go plugin, this is no error.
    ///
    /// # Errors
    /// Code 7: a key is invalid, or `prevResult` is missing.
    pub fn of(request: &AddRequest) -> Result<Option<Self>, Error> {
        let result = request.chained()?;
        let config = Config::parse(&request.network)?;
        let plan = Self::new(config, result, &request.attachment.interface);
        for mapping in plan.idle() {
            note!("{mapping} is not forwarded: the container has no address of that family");
        }
        Ok(Some(plan).filter(|it| !it.forwards.is_empty()))
    }

    /// Returns the plan that forwards the ports in `config` to the container. The container's
    /// address of an IP family is the first in `result` on `interface` or, if there is none, the
    /// first that is not on an interface of the host.
    pub fn new(config: Config, result: &AddResult, interface: &InterfaceName) -> Self {
        let pods = pods(result, interface);
        let forwards = config.mappings.iter().flat_map(|mapping| {
            let concerned = pods.iter().filter(|pod| mapping.is_for(**pod));
            concerned.map(|pod| Forward::new(mapping, *pod))
        });
        let mut seen = HashSet::new();
        Self {
            forwards: forwards.filter(|it| seen.insert(*it)).collect(),
            config,
        }
    }

    /// Returns the mappings that are not forwarded because the container has no address of the
    /// mapping's family.
    fn idle(&self) -> impl Iterator<Item = &Mapping> {
        let pods = self.pods();
        let mappings = self.config.mappings.iter();
        mappings.filter(move |mapping| !pods.iter().any(|pod| mapping.is_for(*pod)))
    }

    /// Returns the container's addresses that ports are forwarded to, without duplicates.
    pub fn pods(&self) -> Vec<IpAddr> {
        let pods: BTreeSet<_> = self.forwards.iter().map(|it| it.pod).collect();
        pods.into_iter().collect()
    }

    /// Returns the container's IPv4 address if a port of 127.0.0.1 is forwarded to it and clients
    /// are masqueraded; otherwise `None`. The host's link towards this address has to permit
    /// packets from 127.0.0.1.
    pub fn localnet(&self) -> Option<Ipv4Addr> {
        let is_local = |forward: &&Forward| forward.port.address.is_none_or(|it| it.is_loopback());
        let mut local = self.forwards.iter().filter(is_local);
        local.find_map(|forward| match forward.pod {
            IpAddr::V4(pod) if self.config.source_nat != SourceNat::None => Some(pod),
            _ => None,
        })
    }
}

impl Forward {
    fn new(mapping: &Mapping, pod: IpAddr) -> Self {
        let address = match mapping.host {
            HostAddress::One(address) => Some(address),
            _ => None,
        };
        Self {
            port: HostPort {
                version: IpVersion::of(pod),
                address,
                protocol: mapping.protocol.number(),
                port: mapping.host_port.get(),
            },
            pod,
            container_port: mapping.container_port.get(),
        }
    }
}

/// Returns the container's addresses, at most one of each family: the first address in `result` on
/// `interface` or, if there is none of this family, the first that is not on an interface of the
/// host.
fn pods(result: &AddResult, interface: &InterfaceName) -> Vec<IpAddr> {
    let link = |ip: &IpConfig| ip.interface.and_then(|it| result.interfaces.get(it));
    let is_own = |ip: &&IpConfig| {
        link(ip).is_some_and(|it| it.name == interface.as_str() && it.sandbox.is_some())
    };
    let is_inside = |ip: &&IpConfig| link(ip).is_none_or(|it| it.sandbox.is_some());
    let first = |version: IpVersion| {
        let of_version = |ip: &&IpConfig| IpVersion::of(ip.address.ip()) == version;
        let candidates = || result.ips.iter().filter(of_version);
        let found = candidates().find(is_own).or(candidates().find(is_inside));
        found.map(|ip| ip.address.ip())
    };
    IpVersion::ALL.into_iter().filter_map(first).collect()
}

#[cfg(test)]
mod tests;
