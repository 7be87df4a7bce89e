//! The desired state of an attachment to a bridge.

use attach::{
    Addressing, Container, Desired, Differences, Gateway, Guard, HostSide, OtherAddress, Port,
    Topology,
};
use cni::{CniArgs, Error, Network};
use netlink::{Connection, Link, LinkKind};

use crate::host_end::HostEnd;
use crate::{Config, bridge, config, vlan};

impl Topology for Config {
    const NAME: &'static str = "bridge";

    fn parse(network: &Network) -> Result<Self, Error> {
        let ipam = network.ipam_type()?;
        Self::of(network.config()?, ipam.as_deref())
    }

    /// Returns whether `end` is a port of the configured bridge, like the veth links that the Go
    /// plugin `bridge` makes.
    fn is_foreign_end(network: &Network, host: &Connection, end: &Link) -> anyhow::Result<bool> {
        let bridge = host.find_link(config::bridge_name(network)?.as_str())?;
        Ok(bridge.is_some_and(|bridge| end.master == Some(bridge.index)))
    }

    fn guard(&self) -> Guard {
        Guard {
            checks_mac: self.checks_mac,
            drops_copies: self.is_promiscuous,
            masquerade: self.masquerade.clone(),
        }
    }

    fn probe_host_side(&self) -> anyhow::Result<()> {
        bridge::probe(self)
    }

    fn gateway(&self) -> Gateway {
        self.gateway
    }

    fn ensure_host_side(&self, host: &Connection, args: &CniArgs) -> anyhow::Result<HostSide> {
        self.note_idle_keys();
        bridge::ensure(host, self, args)
    }

    fn find_host_side(
        &self,
        host: &Connection,
        found: &mut Differences,
    ) -> anyhow::Result<Option<HostSide>> {
        let Some(bridge) = host.find_link(self.bridge.as_str())? else {
            found.add(format!("bridge {} is gone", self.bridge));
            return Ok(None);
        };
        let name = &bridge.name;
        found.unless(bridge.kind == LinkKind::Bridge, || {
            format!("{name} is no bridge")
        });
        found.unless(bridge.is_up, || format!("bridge {name} is down"));
        found.unless(bridge.is_promiscuous || !self.is_promiscuous, || {
            format!("bridge {name} is not promiscuous")
        });
        found.unless(self.vlans.is_empty() || vlan::is_filtering(&bridge), || {
            format!("bridge {name} does not filter VLANs")
        });
        self.frame_filter.compare(host, &bridge, found)?;
        let vlan_link = match HostEnd::find(host, &bridge, self.gateway_vlan())? {
            HostEnd::Bridge => None,
            HostEnd::Link(link) => Some(*link),
            HostEnd::LinkMissing(_) | HostEnd::VlanMissing(_) => {
                found.add("the host's end of the VLAN is gone".to_owned());
                None
            }
        };
        Ok(Some(HostSide {
            mtu: bridge.mtu,
            bridge: Some(bridge),
            vlan_link,
            unset: Vec::new(),
        }))
    }

    fn desired(&self, side: HostSide, addressing: Addressing) -> Desired {
        let is_fixed = self.is_gateway() || addressing.has_ipv6();
        let default_vlan = side.bridge.as_ref().and_then(vlan::default_vlan);
        Desired {
            port: Port {
                flags: self.port_flags.clone(),
                vlans: self.vlans.of_port(self.default_vlan, default_vlan),
            },
            container: Container {
                link: self.container_link,
                dad: self.dad,
                awaits_link_local: true,
                accept_ra: self.accept_ra.or(is_fixed.then_some(false)),
                addressing,
            },
            other_address: match self.gateway_vlan() {
                // The bridge itself has the gateway address, in the gateway's VLAN. The bridge may
                // also be the gateway of other networks, so their addresses stay.
                Some(_) if side.vlan_link.is_none() => OtherAddress::Keep,
                _ => self.other_address,
            },
            guard: self.guard(),
            dns: self.dns.clone(),
            side,
        }
    }
}
