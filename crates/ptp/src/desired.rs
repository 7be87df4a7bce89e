//! The desired state of an attachment that the host routes to.

use attach::{
    Addressing, Container, ContainerLink, Desired, Differences, Gateway, Guard, HostSide,
    OtherAddress, Port, Topology,
};
use cni::{CniArgs, Error, Network};
use netlink::{Connection, Dad, Link};

use crate::config::Config;
use crate::raw::RawConfig;

impl Topology for Config {
    const NAME: &'static str = "ptp";

    fn parse(network: &Network) -> Result<Self, Error> {
        if network.ipam_type()?.is_none() {
            let reason = "required, because the host routes to leased addresses only; name an IPAM \
                          plugin, or use bridge for a link without addresses";
            return Err(Error::invalid("ipam", reason));
        }
        Self::try_from(network.config::<RawConfig>()?)
    }

    /// Returns whether the Go plugin `ptp` may have made the veth pair with the host's end `end`:
    /// `true` unless `end` is a port of a bridge. The Go plugin makes no such ports, so a port
    /// belongs to another plugin, and DEL must not delete it.
    fn is_foreign_end(_: &Network, _: &Connection, end: &Link) -> anyhow::Result<bool> {
        Ok(end.master.is_none())
    }

    fn guard(&self) -> Guard {
        Guard {
            checks_mac: false,
            drops_copies: false,
            masquerade: self.masquerade.clone(),
        }
    }

    fn gateway(&self) -> Gateway {
        Gateway::HostEnd
    }

    /// Returns the MTU and creates nothing, because the attachments of a `ptp` network share
    /// nothing on the host.
    fn ensure_host_side(&self, host: &Connection, _: &CniArgs) -> anyhow::Result<HostSide> {
        Ok(HostSide {
            mtu: self.mtu.resolve(host)?,
            ..HostSide::default()
        })
    }

    fn find_host_side(
        &self,
        _: &Connection,
        _: &mut Differences,
    ) -> anyhow::Result<Option<HostSide>> {
        Ok(Some(HostSide::default()))
    }

    fn desired(&self, side: HostSide, addressing: Addressing) -> Desired {
        Desired {
            side,
            port: Port::default(),
            container: Container {
                link: ContainerLink::Addressed,
                // The host is the container's only neighbour, so no address can be a duplicate.
                dad: Dad::Skip,
                awaits_link_local: true,
                accept_ra: Some(self.accept_ra),
                addressing,
            },
            other_address: OtherAddress::Keep,
            guard: self.guard(),
            dns: self.dns.clone(),
        }
    }
}
