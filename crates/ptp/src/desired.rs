//! The desired state of an attachment that the host routes to.

use attach::{
    Addressing, Container, ContainerLink, Desired, Differences, Gateway, Guard, HostSide, MacCheck,
    OtherAddress, Port, Topology,
};
use netlink::{Connection, Dad};

use crate::config::Config;

impl Topology for Config {
    const NAME: &'static str = "ptp";

    fn gateway(&self) -> Gateway {
        Gateway::HostEnd
    }

    /// Determines only the MTU, because the attachments of a network share no link.
    fn ensure_host_side(&self, host: &Connection) -> anyhow::Result<HostSide> {
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
                mac: self.mac,
                link: ContainerLink::Addressed,
                // The host is the container's only neighbour, so no address can be a duplicate.
                dad: Dad::Skip,
                addressing,
            },
            other_address: OtherAddress::Keep,
            guard: self.guard(),
            dns: self.dns.clone(),
        }
    }
}

impl Config {
    /// Returns the protection of each veth pair in `nf_tables`.
    pub(crate) fn guard(&self) -> Guard {
        Guard {
            mac_check: MacCheck::None,
            drops_copies: false,
            masquerade: self.masquerade.clone(),
        }
    }
}
