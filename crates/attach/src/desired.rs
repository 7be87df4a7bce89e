//! The desired state of an attachment, on the host and in the sandbox.

use anyhow::Context as _;
use cni::result::Dns;
use cni::{CniArgs, Error, Network};
use netlink::{
    Connection, Dad, Link, LinkChange, MacAddress, PortFlag, PortVlans, Request, Tagging,
    VlanCarrier,
};

use crate::protection::Subject;
use crate::{Addressing, Differences, Gateway, Guard, MAX_PORTS, Protection};

/// The parsed configuration of an interface plugin, such as `bridge` or `ptp`. The verbs of this
/// crate call these functions where the plugins differ.
pub trait Topology: Sized {
    /// The CNI `type`.
    const NAME: &'static str;

    /// Reads the configuration.
    ///
    /// # Errors
    /// Codes 2 and 7; the error names the key and the value.
    fn parse(network: &Network) -> Result<Self, Error>;

    /// Returns whether `end` is the host's end of a veth pair that a Go plugin made for this
    /// network. The caller has checked that the alias of `end` is no attachment's tag. DEL calls
    /// this function without parsing the whole configuration, because DEL must work even if other
    /// keys are invalid.
    ///
    /// # Errors
    /// - Code 7: a key that names a link is invalid.
    /// - Code 100: the kernel refuses a request.
    fn is_foreign_end(network: &Network, host: &Connection, end: &Link) -> anyhow::Result<bool>;

    /// Returns how `nf_tables` protects each veth pair of the network.
    fn guard(&self) -> Guard;

    /// Returns whether, and in which way, the host is the gateway of the containers.
    fn gateway(&self) -> Gateway;

    /// Checks whether the state of the host, for example of the bridge, lets an ADD succeed;
    /// changes nothing.
    ///
    /// # Errors
    /// - Code 50: every ADD would fail; the error names the reason.
    /// - Code 100: the kernel refuses a request.
    fn probe_host_side(&self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Creates what all attachments of the network share on the host (a bridge, for example), or
    /// adds what is missing. `args` are the caller's `CNI_ARGS`. Returns the new state.
    ///
    /// # Errors
    /// The kernel refuses a request. Another kind of link has the name of the bridge.
    fn ensure_host_side(&self, host: &Connection, args: &CniArgs) -> anyhow::Result<HostSide>;

    /// Reads the state of the host's side and changes nothing. Adds the differences from the
    /// configuration to `found`. Returns `None` if the network has a bridge and it no longer
    /// exists.
    ///
    /// # Errors
    /// The kernel refuses a request.
    fn find_host_side(
        &self,
        host: &Connection,
        found: &mut Differences,
    ) -> anyhow::Result<Option<HostSide>>;

    /// Returns the desired state of an attachment with these addresses, without side effects.
    fn desired(&self, side: HostSide, addressing: Addressing) -> Desired;
}

/// The host's side of a network, which all attachments of the network share. The default value
/// describes a network without a shared link.
#[derive(Debug, Clone, Default)]
pub struct HostSide {
    /// MTU of a new veth pair, in bytes; only ADD uses it.
    pub mtu: u32,
    /// The bridge that the host's end of a veth pair joins; `None` without a bridge.
    pub bridge: Option<Link>,
    /// The VLAN link on the bridge that has the gateway addresses; `None` if there is none.
    pub vlan_link: Option<Link>,
    /// Messages about protections against router advertisements that ADD could not set, because
    /// `/proc/sys` is read-only.
    pub unset: Vec<String>,
}

impl HostSide {
    /// Returns the link that has the gateway addresses of all attachments. Returns `None` without a
    /// bridge: the host's end of each veth pair then has them.
    pub fn gateway_link(&self) -> Option<&Link> {
        self.vlan_link.as_ref().or(self.bridge.as_ref())
    }
}

/// The desired state of an attachment.
///
/// ADD applies all of it. The comment of each field says what CHECK compares. CHECK ignores what a
/// later plugin of the chain may change (CNI specification, section 2, CHECK).
#[derive(Debug, Clone)]
pub struct Desired {
    /// The host's side of the network. [`Topology::find_host_side`] compares it for CHECK.
    pub side: HostSide,
    /// The host's end of the veth pair. CHECK compares this field, except for the native VLAN.
    pub port: Port,
    /// The container's end. The comment of each of its fields says what CHECK compares.
    pub container: Container,
    /// What ADD does with an address that conflicts with a gateway address. CHECK ignores such
    /// addresses.
    pub other_address: OtherAddress,
    /// How `nf_tables` protects the veth pair. CHECK compares all elements.
    pub guard: Guard,
    /// DNS settings that replace those of the IPAM plugin. ADD only copies them into the result.
    pub dns: Option<Dns>,
}

impl Desired {
    /// Returns the `nf_tables` elements of the attachment with the tag `owner`, grouped by table.
    /// `port` is the name of the host's end; `mac` is the MAC of the container's end.
    pub(crate) fn protections(
        &self,
        port: &str,
        mac: MacAddress,
        owner: &str,
    ) -> anyhow::Result<Vec<Protection>> {
        self.guard.protections(&Subject {
            bridge: self.side.bridge.as_ref(),
            port,
            mac,
            ips: &self.container.addressing.ips,
            owner,
        })
    }
}

/// What ADD does with an address that conflicts with the gateway's address on the same link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherAddress {
    /// ADD fails.
    Refuse,
    /// `forceAddress`: ADD replaces the conflicting address.
    Replace,
    /// ADD adds the gateway's address and keeps all other addresses of the link, because the link
    /// may also be the gateway of other networks.
    Keep,
}

/// The container's end of the veth pair.
#[derive(Debug, Clone, Default)]
pub struct Container {
    /// State of the link. CHECK compares whether the link is up.
    pub link: ContainerLink,
    /// Duplicate address detection for IPv6. CHECK ignores it.
    pub dad: Dad,
    /// Whether ADD waits for the link-local address even if the lease has no IPv6 address. On a
    /// network card, the detection of duplicates would take one to two seconds.
    pub awaits_link_local: bool,
    /// Whether the link accepts router advertisements and derives addresses from them. `None` means
    /// that the kernel's default stays. CHECK ignores it, because `tuning` may change it.
    pub accept_ra: Option<bool>,
    /// Addresses and routes. CHECK requires those of `prevResult` and ignores others.
    pub addressing: Addressing,
}

/// State of the container's end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContainerLink {
    /// Up, with the addresses that an IPAM plugin leases.
    #[default]
    Addressed,
    /// Up, without addresses: the network has no IPAM plugin.
    Up,
    /// `disableContainerInterface`: down.
    Down,
}

/// The host's end as a port of a bridge. The default is a port without flags and VLANs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Port {
    /// Flags that are on. All other flags are off.
    pub flags: Vec<PortFlag>,
    /// VLANs of the port; `None` if the network configures none, so the bridge need not filter by
    /// VLAN.
    pub vlans: Option<PortVlanSet>,
}

/// VLANs of a port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortVlanSet {
    /// VLANs that the port carries.
    pub carried: Vec<PortVlans>,
    /// The native VLAN, which the port also carries. CHECK ignores it, because the Go
    /// plugins do not set it.
    pub native: Option<PortVlans>,
    /// The bridge's default VLAN, which ADD removes from the port; `None` if the port stays in it,
    /// or if the bridge has none. CHECK accepts it as an untagged VLAN, because the Go plugins
    /// do not remove it.
    pub left: Option<PortVlans>,
}

impl Port {
    /// Returns the requests that turn on the configured flags, such as hairpin, of the bridge port
    /// `name`.
    pub(crate) fn flag_requests(&self, name: &str) -> Vec<Request> {
        let changes = self.flags.iter().map(|flag| LinkChange::Port(*flag));
        changes
            .map(|change| Request::change_link(name, &change))
            .collect()
    }

    /// Returns the requests that add the port with the interface index `index` to its VLANs. If the
    /// port leaves the bridge's default VLAN, they also remove it from that VLAN. Returns an empty
    /// list if no VLANs are configured.
    pub(crate) fn vlan_requests(&self, index: u32) -> Vec<Request> {
        let Some(vlans) = &self.vlans else {
            return Vec::new();
        };
        let joined: Vec<_> = vlans.native.iter().chain(&vlans.carried).copied().collect();
        let left = vlans.left.filter(|left| !joined.contains(left));
        let port = VlanCarrier::Port(index);
        let leave = left.map(|left| Request::delete_vlans(port, left));
        let join = joined.into_iter().map(|it| Request::add_vlans(port, it));
        leave.into_iter().chain(join).collect()
    }

    /// Compares the flags and VLANs of `link` with the desired ones, and adds the differences to
    /// `found`.
    pub(crate) fn compare(
        &self,
        host: &Connection,
        link: &Link,
        found: &mut Differences,
    ) -> anyhow::Result<()> {
        let name = &link.name;
        for flag in PortFlag::ALL {
            let wanted = self.flags.contains(&flag);
            let there = link.port.as_ref().map(|it| it.flags.contains(&flag));
            found.unless(there == Some(wanted), || {
                format!("{flag} of {name} is not {wanted}")
            });
        }
        if let Some(vlans) = &self.vlans {
            vlans.compare(name, &host.port_vlans(link.index)?, found);
        }
        Ok(())
    }
}

impl PortVlanSet {
    fn compare(&self, name: &str, there: &[PortVlans], found: &mut Differences) {
        for wanted in &self.carried {
            found.unless(wanted.is_carried(there), || {
                format!("{name} does not carry {wanted}")
            });
        }
        let left = self.left.map(|left| PortVlans {
            tagging: Tagging::Tagged,
            ..left
        });
        if let Some(left) = left.filter(|it| !it.is_carried(&self.carried)) {
            found.unless(!left.is_carried(there), || {
                format!("{name} carries {left}, the bridge's default")
            });
        }
    }
}

/// If the kernel reports that the bridge has no free port, adds advice for the operator to `error`.
/// Returns any other error unchanged.
pub(crate) fn explain_full_bridge(error: netlink::Error, bridge: Option<&Link>) -> anyhow::Error {
    match bridge.filter(|_| error.is_bridge_full()) {
        Some(bridge) => no_port_left(bridge).context(error),
        None => error.into(),
    }
}

/// Returns the error for a bridge without free ports.
pub fn no_port_left(bridge: &Link) -> anyhow::Error {
    anyhow::anyhow!(
        "bridge {} has {MAX_PORTS} ports, and a Linux bridge holds no more; run fewer containers on this \
         host, or give some a network with another bridge",
        bridge.name
    )
}

pub(crate) fn mac_of(link: &Link) -> anyhow::Result<MacAddress> {
    link.mac.context("the container's link has no MAC")
}
