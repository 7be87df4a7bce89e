//! The configuration: its keys and the rules between them.

use attach::{ContainerLink, Gateway, Masquerade, MtuChoice, OtherAddress, RawMasquerade, dns};
use cni::result::Dns;
use cni::{Error, InterfaceName, Network, WhenFull, note};
use netlink::PortFlag;

use crate::vlan::{Access, DefaultVlan, Vlans};
use crate::{FrameFilter, RawConfig};

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Name of the bridge.
    pub bridge: InterfaceName,
    /// Whether the host is the containers' gateway, and whether it is their default gateway.
    pub gateway: Gateway,
    /// What ADD does with an address of the bridge that conflicts with the gateway's address.
    pub other_address: OtherAddress,
    /// MTU of the veth pair and of a new bridge.
    pub mtu: MtuChoice,
    /// `promiscMode`: the host receives all frames on the bridge, not only those addressed to it.
    pub is_promiscuous: bool,
    /// Bridge port flags (hairpin, isolated) that are on at the host's end of the veth pair.
    pub port_flags: Vec<PortFlag>,
    /// VLANs of the container's port on the bridge.
    pub vlans: Vlans,
    /// Whether the container's port stays in the bridge's default VLAN.
    pub default_vlan: DefaultVlan,
    /// `macspoofchk`: rules drop frames that the container sends with a MAC other than its own.
    pub checks_mac: bool,
    /// Masquerading, if configured.
    pub masquerade: Option<Masquerade>,
    /// Whether the container's end of the veth pair is up, and whether it has addresses.
    pub container_link: ContainerLink,
    /// Duplicate address detection for IPv6 inside the sandbox.
    pub dad: netlink::Dad,
    /// `acceptRa`: whether the container's interface accepts router advertisements; `None` if the key
    /// is absent.
    pub accept_ra: Option<bool>,
    /// `bridgeNfCall`: what ADD sets so that netfilter sees bridged frames.
    pub frame_filter: FrameFilter,
    /// DNS settings that replace those of the IPAM plugin, if configured.
    pub dns: Option<Dns>,
    /// What STATUS does if the bridge has no free port: fails, or only writes a message.
    pub when_full: WhenFull,
}

impl Config {
    /// Writes to standard error which of the keys `isGateway`, `isDefaultGateway` and `ipMasq` have
    /// no effect, because the container gets no addresses. They are no error, because the Go plugin
    /// `bridge` accepts them silently.
    pub(crate) fn note_idle_keys(&self) {
        if self.container_link == ContainerLink::Addressed {
            return;
        }
        if self.gateway != Gateway::None {
            note(
                "isGateway and isDefaultGateway do nothing without ipam, which leases the addresses",
            );
        }
        if self.masquerade.is_some() {
            note("ipMasq does nothing without ipam, which leases the addresses");
        }
    }

    /// Returns whether the host is the gateway of the containers, which need addresses for that.
    pub(crate) fn is_gateway(&self) -> bool {
        self.gateway != Gateway::None && self.container_link == ContainerLink::Addressed
    }

    /// Returns the VLAN that the gateway addresses belong to. Returns `None` if the network has no
    /// gateway or the key `vlan` is not set.
    pub fn gateway_vlan(&self) -> Option<&Access> {
        let access = self.vlans.access.as_ref();
        access.filter(|_| self.gateway != Gateway::None)
    }

    /// Checks the keys against each other and parses them. `ipam` is the value of `ipam.type`;
    /// `None` means a network without an IPAM plugin.
    pub(crate) fn of(raw: RawConfig, ipam: Option<&str>) -> Result<Self, Error> {
        let bridge = named(raw.bridge.as_deref())?;
        let (keep, leave) = (DefaultVlan::Keep, DefaultVlan::Leave);
        let container_link = container_link(&raw, ipam)?;
        let masquerade = masquerade(&raw)?;
        let gateway = gateway(&raw);
        let is_routed = container_link == ContainerLink::Addressed
            && (gateway != Gateway::None || masquerade.is_some());
        let frame_filter = FrameFilter::parse(raw.bridge_nf_call.as_ref(), is_routed)?;
        let (replace, refuse) = (OtherAddress::Replace, OtherAddress::Refuse);
        Ok(Self {
            vlans: Vlans::parse(raw.vlan, &raw.vlan_trunk, &bridge)?,
            default_vlan: choose(raw.preserve_default_vlan, keep, leave),
            gateway,
            other_address: choose(raw.force_address, replace, refuse),
            mtu: MtuChoice::parse(raw.mtu, raw.mtu_overhead)?,
            is_promiscuous: is_promiscuous(&raw)?,
            port_flags: port_flags(&raw),
            checks_mac: raw.macspoofchk,
            masquerade,
            container_link,
            dad: choose(raw.enabledad, netlink::Dad::Perform, netlink::Dad::Skip),
            accept_ra: raw.accept_ra,
            frame_filter,
            bridge,
            dns: dns(raw.dns),
            when_full: raw.status_when_full,
        })
    }
}

/// Parses only the bridge's name. DEL uses this function, because it must not fail on keys that it
/// does not need.
///
/// # Errors
/// Code 7: the name is not an interface name.
pub(crate) fn bridge_name(network: &Network) -> Result<InterfaceName, Error> {
    named(network.key::<Option<String>>("bridge")?.as_deref())
}

/// Returns `yes` if `is_asked`, the value of a boolean key, is true; else `no`.
fn choose<T>(is_asked: bool, yes: T, no: T) -> T {
    if is_asked { yes } else { no }
}

fn named(bridge: Option<&str>) -> Result<InterfaceName, Error> {
    let name = bridge.filter(|name| !name.is_empty());
    let name = name.unwrap_or(DEFAULT_BRIDGE);
    if name.contains('%') {
        let reason = format!(
            "{name} contains %, for which the kernel would create a new numbered bridge each time"
        );
        return Err(Error::invalid("bridge", reason));
    }
    name.parse()
        .map_err(|reason| Error::invalid("bridge", format!("{reason}")))
}

fn gateway(raw: &RawConfig) -> Gateway {
    match (raw.is_default_gateway, raw.is_gateway) {
        (true, _) => Gateway::DefaultRoute,
        (false, true) => Gateway::Address,
        (false, false) => Gateway::None,
    }
}

fn masquerade(raw: &RawConfig) -> Result<Option<Masquerade>, Error> {
    Masquerade::parse(&RawMasquerade {
        is_asked: raw.ip_masq,
        backend: raw.ip_masq_backend,
        is_random: raw.ip_masq_random_fully,
        exempt: raw.non_masquerade_cidrs.clone(),
    })
}

fn port_flags(raw: &RawConfig) -> Vec<PortFlag> {
    let flags = [
        (raw.hairpin_mode, PortFlag::Hairpin),
        (raw.port_isolation, PortFlag::Isolated),
    ];
    let set = flags.into_iter().filter(|(is_set, _)| *is_set);
    set.map(|(_, flag)| flag).collect()
}

fn is_promiscuous(raw: &RawConfig) -> Result<bool, Error> {
    if raw.promisc_mode && raw.hairpin_mode {
        let reason = "true excludes hairpinMode: true; choose one of them";
        return Err(Error::invalid("promiscMode", reason));
    }
    Ok(raw.promisc_mode)
}

fn container_link(raw: &RawConfig, ipam: Option<&str>) -> Result<ContainerLink, Error> {
    match (raw.disable_container_interface, ipam) {
        (false, Some(_)) => Ok(ContainerLink::Addressed),
        (false, None) => Ok(ContainerLink::Up),
        (true, None) => Ok(ContainerLink::Down),
        (true, Some(_)) => Err(Error::invalid(
            "disableContainerInterface",
            "true leaves the interface down, where the addresses of ipam are of no use; remove one of them",
        )),
    }
}

/// The bridge's name if the key `bridge` is missing.
pub const DEFAULT_BRIDGE: &str = "cni0";

#[cfg(test)]
mod tests;
