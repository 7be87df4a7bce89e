//! What was asked: the configuration's keys, and what they mean together.

use cni::result::Dns;
use cni::{CniArgs, Error, InterfaceName, Network, WhenFull};
use netlink::MacAddress;
use serde::Deserialize;

use crate::masquerade::{Masquerade, RawMasquerade};
use crate::raw::{RawConfig, RawDns};
use crate::vlan::{Access, DefaultVlan, RawVlans, Vlans};

/// What the keys of the configuration mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// The bridge's name.
    pub bridge: InterfaceName,
    /// What the bridge is to the containers.
    pub gateway: Gateway,
    /// Whether another address of the bridge gives way to the gateway's.
    pub other_address: OtherAddress,
    /// The MTU of the pair and of a bridge that is made.
    pub mtu: MtuChoice,
    /// How a frame finds its way back to the port that it came from.
    pub port_mode: PortMode,
    /// The VLANs that the port carries.
    pub vlans: Vlans,
    /// Whether it stays in the bridge's default VLAN, too.
    pub default_vlan: DefaultVlan,
    /// What becomes of frames from another MAC than the container's.
    pub mac_check: MacCheck,
    /// What leaves from the host's address, where anything does.
    pub masquerade: Option<Masquerade>,
    /// What the port exchanges frames with.
    pub isolation: Isolation,
    /// What becomes of the container's end.
    pub container_link: ContainerLink,
    /// Duplicate address detection for IPv6 inside the sandbox.
    pub dad: netlink::Dad,
    /// `net.bridge.bridge-nf-call-*`.
    pub bridge_nf_call: BridgeNfCall,
    /// Replaces the name resolution that the delegate reports, where it was asked for.
    pub dns: Option<Dns>,
    /// The MAC that was asked for the container's end.
    pub mac: Option<MacAddress>,
    /// What STATUS says where the bridge has no port left.
    pub when_full: WhenFull,
}

/// What the bridge is to the containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gateway {
    /// A switch, no more.
    None,
    /// It bears the gateway addresses.
    Bridge,
    /// And the containers' default routes lead there.
    DefaultRoute,
}

/// What to do with an address on the bridge that is in the gateway's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherAddress {
    /// ADD fails.
    Refuse,
    /// `forceAddress`: it is replaced.
    Replace,
    /// It stays beside the gateway's.
    Keep,
}

/// Where the MTU comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MtuChoice {
    /// In bytes, 68 to 65,535.
    Asked(u32),
    /// From the host's uplinks, less `overhead` bytes.
    Detect {
        /// Bytes that an encapsulation takes.
        overhead: u32,
    },
}

/// How a frame finds its way back to the port that it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PortMode {
    /// It does not.
    Plain,
    /// `hairpinMode`: the port reflects.
    Hairpin,
    /// `promiscMode`: the bridge receives everything and the host answers.
    Promiscuous,
}

/// What becomes of frames from another MAC than the container's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MacCheck {
    /// They pass.
    None,
    /// `macspoofchk`: they are dropped as they arrive.
    Drop,
}

/// What a port exchanges frames with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isolation {
    /// Every other port, and the bridge itself.
    None,
    /// `portIsolation`: ports that are not isolated, and the bridge itself.
    Port,
}

/// What becomes of the container's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContainerLink {
    /// It is up and bears the addresses that a plugin leases.
    Addressed,
    /// Without `ipam` it is up, and the rest is the container's.
    Up,
    /// `disableContainerInterface`: it is down.
    Down,
}

/// Whether bridged traffic passes through netfilter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BridgeNfCall {
    /// As Kubernetes requires of bridge plugins.
    Enable,
    /// As it is.
    Leave,
}

#[cfg(test)]
impl Default for Config {
    /// What a configuration without any key means.
    fn default() -> Self {
        let raw = RawConfig::default();
        let ipam = Ipam::Plugin;
        Self::try_from(Written { raw, ipam }).unwrap()
    }
}

impl Config {
    /// Reads the configuration and `CNI_ARGS`.
    ///
    /// # Errors
    /// Codes 2, 4 and 7 of the protocol, naming key and value.
    pub fn parse(network: &Network, args: &CniArgs) -> Result<Self, Error> {
        args.expect_only(KNOWN_ARGS)?;
        let config = Self::of_network(network)?;
        let mac = asked_mac(network, args)?;
        Ok(Self { mac, ..config })
    }

    /// Reads what does not depend on one attachment.
    ///
    /// # Errors
    /// Codes 2 and 7 of the protocol, naming key and value.
    pub fn of_network(network: &Network) -> Result<Self, Error> {
        let ipam = match network.ipam_type()? {
            Some(_) => Ipam::Plugin,
            None => Ipam::None,
        };
        let raw = network.config()?;
        Self::try_from(Written { raw, ipam })
    }
}

impl Config {
    /// The VLAN that the gateway stands in, where there are both.
    pub fn gateway_vlan(&self) -> Option<&Access> {
        let access = self.vlans.access.as_ref();
        access.filter(|_| self.gateway != Gateway::None)
    }
}

/// The bridge's name alone: DEL and GC must not fail for keys that they do not need.
///
/// # Errors
/// Code 7: the name is no interface name.
pub(crate) fn bridge_name(network: &Network) -> Result<InterfaceName, Error> {
    #[derive(Deserialize)]
    struct Name {
        bridge: Option<String>,
    }
    named(network.quiet_config::<Name>()?.bridge.as_deref())
}

/// All that decides a configuration.
#[derive(Debug)]
struct Written {
    raw: RawConfig,
    ipam: Ipam,
}

/// Who leases addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ipam {
    /// Nobody does: layer 2.
    None,
    /// The plugin that `ipam.type` names.
    Plugin,
}

impl TryFrom<Written> for Config {
    type Error = Error;

    fn try_from(Written { raw, ipam }: Written) -> Result<Self, Error> {
        let bridge = named(raw.bridge.as_deref())?;
        let vlans = RawVlans {
            vlan: raw.vlan,
            trunk: raw.vlan_trunk.clone(),
        };
        let leaves_nf_call = raw.bridge_nf_call == Some(false);
        Ok(Self {
            vlans: Vlans::parse(&vlans, &bridge)?,
            default_vlan: choose(
                raw.preserve_default_vlan,
                DefaultVlan::Keep,
                DefaultVlan::Leave,
            ),
            gateway: gateway(&raw),
            other_address: choose(
                raw.force_address,
                OtherAddress::Replace,
                OtherAddress::Refuse,
            ),
            mtu: mtu(&raw)?,
            port_mode: port_mode(&raw)?,
            mac_check: choose(raw.macspoofchk, MacCheck::Drop, MacCheck::None),
            masquerade: masquerade(&raw)?,
            isolation: choose(raw.port_isolation, Isolation::Port, Isolation::None),
            container_link: container_link(&raw, ipam)?,
            dad: choose(raw.enabledad, netlink::Dad::Perform, netlink::Dad::Skip),
            bridge_nf_call: choose(leaves_nf_call, BridgeNfCall::Leave, BridgeNfCall::Enable),
            bridge,
            dns: dns(raw.dns),
            mac: None,
            when_full: raw.status_when_full,
        })
    }
}

/// What a key that says yes or no means.
fn choose<T>(is_asked: bool, yes: T, no: T) -> T {
    if is_asked { yes } else { no }
}

fn named(bridge: Option<&str>) -> Result<InterfaceName, Error> {
    let name = bridge.filter(|name| !name.is_empty());
    let name = name.unwrap_or(DEFAULT_BRIDGE);
    if name.contains('%') {
        let reason =
            format!("{name} has a %, by which the kernel would number a new bridge each time");
        return Err(Error::invalid("bridge", reason));
    }
    name.parse()
        .map_err(|reason| Error::invalid("bridge", format!("{reason}")))
}

/// An empty list asks for none, as no key does not.
fn dns(raw: RawDns) -> Option<Dns> {
    let domain = raw.domain.filter(|domain| !domain.is_empty());
    let lists = [&raw.nameservers, &raw.search, &raw.options];
    let is_asked = domain.is_some() || lists.iter().any(|list| list.is_some());
    is_asked.then(|| Dns {
        nameservers: raw.nameservers.unwrap_or_default(),
        domain,
        search: raw.search.unwrap_or_default(),
        options: raw.options.unwrap_or_default(),
        ..Dns::default()
    })
}

fn gateway(raw: &RawConfig) -> Gateway {
    match (raw.is_default_gateway, raw.is_gateway) {
        (true, _) => Gateway::DefaultRoute,
        (false, true) => Gateway::Bridge,
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

fn mtu(raw: &RawConfig) -> Result<MtuChoice, Error> {
    match (raw.mtu, raw.mtu_overhead) {
        (0, overhead) => Ok(MtuChoice::Detect { overhead }),
        (mtu, _) if !MTU_RANGE.contains(&mtu) => Err(Error::invalid(
            "mtu",
            format!("{mtu} is not within 68 to 65535 bytes; 0 detects it"),
        )),
        (mtu, 0) => Ok(MtuChoice::Asked(mtu)),
        (mtu, overhead) => Err(Error::invalid(
            "mtuOverhead",
            format!(
                "{overhead} is subtracted from a detected MTU, but mtu asks for {mtu}; remove one of them"
            ),
        )),
    }
}

fn port_mode(raw: &RawConfig) -> Result<PortMode, Error> {
    match (raw.hairpin_mode, raw.promisc_mode) {
        (true, true) => Err(Error::invalid(
            "promiscMode",
            "true excludes hairpinMode: true; choose one of them",
        )),
        (true, false) => Ok(PortMode::Hairpin),
        (false, true) => Ok(PortMode::Promiscuous),
        (false, false) => Ok(PortMode::Plain),
    }
}

fn container_link(raw: &RawConfig, ipam: Ipam) -> Result<ContainerLink, Error> {
    match (raw.disable_container_interface, ipam) {
        (false, Ipam::Plugin) => Ok(ContainerLink::Addressed),
        (false, Ipam::None) => Ok(ContainerLink::Up),
        (true, Ipam::None) => Ok(ContainerLink::Down),
        (true, Ipam::Plugin) => Err(Error::invalid(
            "disableContainerInterface",
            "true leaves the interface down, where the addresses of ipam are of no use; remove one of them",
        )),
    }
}

/// The MAC asked for by the runtime, else by `args.cni`, else by `CNI_ARGS`.
fn asked_mac(network: &Network, args: &CniArgs) -> Result<Option<MacAddress>, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Section {
        mac: String,
    }
    let runtime = network.runtime_config::<Section>()?.mac;
    let conventional = network.args_cni::<Section>()?.mac;
    let argument = args.value("MAC").unwrap_or_default().to_owned();
    let asked = [
        ("runtimeConfig.mac", runtime),
        ("args.cni.mac", conventional),
        ("CNI_ARGS MAC", argument),
    ];
    let Some((key, text)) = asked.into_iter().find(|(_, text)| !text.is_empty()) else {
        return Ok(None);
    };
    match text.parse::<MacAddress>() {
        Ok(mac) if mac.is_unicast() => Ok(Some(mac)),
        Ok(mac) => Err(Error::invalid(key, format!("{mac} is no unicast address"))),
        Err(reason) => Err(Error::invalid(key, format!("{text:?}: {reason}"))),
    }
}

const DEFAULT_BRIDGE: &str = "cni0";

/// From what IPv4 needs (RFC 791) to what an Ethernet link may have.
const MTU_RANGE: std::ops::RangeInclusive<u32> = 68..=65_535;

/// `IP` and `GATEWAY` are for the delegate, which gets the same environment.
const KNOWN_ARGS: &[&str] = &[
    "MAC",
    "IP",
    "GATEWAY",
    "K8S_POD_NAMESPACE",
    "K8S_POD_NAME",
    "K8S_POD_INFRA_CONTAINER_ID",
    "K8S_POD_UID",
];

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
