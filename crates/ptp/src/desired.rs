//! What an attachment by a routed pair shall have.

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

    /// Chooses the MTU only: attachments share no link.
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
                // The host is the only neighbour.
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
    /// What guards each pair in `nf_tables`.
    pub(crate) fn guard(&self) -> Guard {
        Guard {
            mac_check: MacCheck::None,
            drops_copies: false,
            masquerade: self.masquerade.clone(),
        }
    }
}
