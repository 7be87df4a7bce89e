//! The host's side: the bridge, its MTU and its sysctls.

use std::fs::{self, File};
use std::io::Read as _;

use anyhow::Context as _;
use cni::{Error, note};
use netlink::{Connection, Link, LinkChange, LinkKind, MacAddress, Request, Route};
use netns::Sysctl;

use crate::config::{BridgeNfCall, Config, Gateway, MtuChoice, OtherAddress, PortMode};
use crate::host_end::HostEnd;
use crate::mtu;
use crate::plan;
use crate::vlan;

/// The bridge, which is up, and the MTU of its pairs.
#[derive(Debug, Clone)]
pub(crate) struct Bridge {
    /// The bridge after the changes.
    pub link: Link,
    /// The VLAN link with the gateway's addresses, if the bridge itself does not have them.
    pub vlan_link: Option<Link>,
    /// MTU of pairs, in bytes.
    pub mtu: u32,
}

impl Bridge {
    /// Returns the link with the gateway's addresses.
    pub fn gateway_link(&self) -> &Link {
        self.vlan_link.as_ref().unwrap_or(&self.link)
    }

    /// Returns the treatment of other addresses on [`Self::gateway_link`].
    pub fn other_address(&self, config: &Config) -> OtherAddress {
        match config.gateway_vlan() {
            // In its own VLAN the bridge is the host's, and maybe other networks' gateway.
            Some(_) if self.vlan_link.is_none() => OtherAddress::Keep,
            _ => config.other_address,
        }
    }
}

/// Finds or creates the bridge, and brings it up.
///
/// # Errors
/// The name belongs to another kind of link; refusals of the kernel.
pub(crate) fn ensure_bridge(host: &Connection, config: &Config) -> anyhow::Result<Bridge> {
    let mtu = choose_mtu(host, config.mtu)?;
    let asked = config.bridge.as_str();
    let link = match host.find_link(asked)? {
        Some(link) => link,
        None => make_bridge(host, asked, mtu)?,
    };
    expect_bridge(&link)?;
    let host_end = HostEnd::find(host, &link, config.gateway_vlan())?;
    let link = vlan::ensure_filtering(host, ensure_mac(host, link)?, &config.vlans)?;
    // The configured name may be an alternative name of the link; sysctls need the main one.
    let name = link.name.as_str();
    ignore_router_advertisements(name, config.gateway)?;
    if config.bridge_nf_call == BridgeNfCall::Enable {
        enable_bridge_nf_call()?;
    }
    let mut changes = Vec::new();
    if !link.is_up {
        changes.push(LinkChange::Up);
    }
    if config.port_mode == PortMode::Promiscuous && !link.is_promiscuous {
        changes.push(LinkChange::Promiscuous);
    }
    let requests = changes
        .iter()
        .map(|change| Request::change_link(name, change))
        .collect();
    host.execute(requests)?;
    let vlan_link = host_end.ensure(host, &link)?;
    Ok(Bridge {
        link,
        vlan_link,
        mtu,
    })
}

/// Sets `accept_ra` to 0: otherwise the bridge would accept any sandbox's router advertisements
/// (CVE-2020-10749).
///
/// # Errors
/// The value is wrong and cannot be changed, and the host is to be the gateway.
fn ignore_router_advertisements(bridge: &str, gateway: Gateway) -> anyhow::Result<()> {
    match Sysctl::ipv6(bridge, "accept_ra").ensure_if_present("0") {
        Err(error) if gateway == Gateway::None => note(format_args!(
            "a container can change the host's IPv6 routes by router advertisements: {:#}",
            anyhow::Error::from(error)
        )),
        outcome => drop(outcome?),
    }
    Ok(())
}

/// Checks that the link is a bridge.
///
/// # Errors
/// Code 7 with the link's kind.
pub(crate) fn expect_bridge(link: &Link) -> Result<(), Error> {
    if link.kind == LinkKind::Bridge {
        return Ok(());
    }
    let reason = format!(
        "{} exists and is no bridge ({:?}); choose another name",
        link.name, link.kind
    );
    Err(Error::invalid("bridge", reason))
}

/// Disables IPv6 on a port. A bridge's port does not need IPv6 but would have three routes. The
/// kernel walks the routes of all ports whenever a link comes or goes.
pub(crate) fn disable_ipv6(port: &str) {
    if let Err(error) = Sysctl::ipv6(port, "disable_ipv6").ensure_if_present("1") {
        note(format_args!("{:#}", anyhow::Error::from(error)));
    }
}

/// Maximum number of ports of a bridge: `BR_MAX_PORTS` in `net/bridge/br_private.h`, minus the
/// bridge itself.
pub(crate) const MOST_PORTS: usize = 1023;

/// Returns the error of a full bridge.
pub(crate) fn no_port_left(bridge: &Link) -> anyhow::Error {
    anyhow::anyhow!(
        "bridge {} has {MOST_PORTS} ports, and a Linux bridge holds no more; run fewer containers on this \
         host, or give some a network with another bridge",
        bridge.name
    )
}

/// Creates the bridge. If a concurrent ADD is faster, its bridge is used.
fn make_bridge(host: &Connection, name: &str, mtu: u32) -> anyhow::Result<Link> {
    match host.add_bridge(name, random_mac()?, mtu) {
        Err(error) if !error.is_already_exists() => return Err(error.into()),
        _ => {}
    }
    // Duplicate address detection would delay the host's neighbour requests to pods that it
    // forwards to. The address follows from the MAC, which only this bridge has.
    if let Err(error) = Sysctl::ipv6(name, "accept_dad").ensure_if_present("0") {
        note(format_args!("{:#}", anyhow::Error::from(error)));
    }
    Ok(host.link(name)?)
}

/// Sets the MAC of a bridge that another program created without one. Such a bridge takes the
/// lowest MAC of its ports, and none after the last one. A fixed MAC keeps the neighbours' entries
/// valid.
///
/// Concurrent first ADDs all set the same MAC, before any of them adds a port.
fn ensure_mac(host: &Connection, bridge: Link) -> anyhow::Result<Link> {
    let had = bridge.mac.filter(|it| it.is_unicast());
    if had.is_some() && is_mac_chosen(&bridge.name) {
        return Ok(bridge);
    }
    let mac = had.map_or_else(|| mac_of_this_boot(&bridge.name), Ok)?;
    let choose = Request::change_link(&bridge.name, &LinkChange::Mac(mac));
    host.execute(vec![choose])?;
    Ok(Link {
        mac: Some(mac),
        ..bridge
    })
}

/// Returns whether `addr_assign_type` is `NET_ADDR_SET`, which netlink does not report. Returns
/// `false` without sysfs.
fn is_mac_chosen(bridge: &str) -> bool {
    let mut kind = [0];
    let file = File::open(format!("/sys/class/net/{bridge}/addr_assign_type"));
    let read = file.and_then(|mut file| file.read_exact(&mut kind));
    read.is_ok() && kind == *b"3"
}

fn mac_of_this_boot(bridge: &str) -> anyhow::Result<MacAddress> {
    let file = "/proc/sys/kernel/random/boot_id";
    let boot_id = fs::read_to_string(file).with_context(|| format!("read {file}"))?;
    Ok(plan::bridge_mac(&boot_id, bridge))
}

/// Returns a random locally administered MAC. An explicit MAC stays, whatever MACs the ports have.
fn random_mac() -> anyhow::Result<MacAddress> {
    let mut bytes = [0; 6];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.context("read /dev/urandom")?;
    let [first, ..] = &mut bytes;
    *first = (*first & 0xfc) | 0x02;
    Ok(MacAddress(bytes))
}

fn choose_mtu(host: &Connection, choice: MtuChoice) -> anyhow::Result<u32> {
    let overhead = match choice {
        MtuChoice::Asked(mtu) => return Ok(mtu),
        MtuChoice::Detect { overhead } => overhead,
    };
    let (mtu, why) = match detect_mtu(host)? {
        Some(detected) => (detected.mtu, detected.why),
        None => (
            mtu::FALLBACK,
            "Ethernet's, since no link of the host is up".to_owned(),
        ),
    };
    let rest = mtu::less_overhead(mtu, overhead).ok_or_else(|| {
        Error::invalid(
            "mtuOverhead",
            format!("{overhead} leaves too little of {mtu} bytes, {why}"),
        )
    })?;
    match overhead {
        0 => note(format_args!("mtu {rest}: {why}")),
        _ => note(format_args!(
            "mtu {rest}: {mtu}, {why}, less mtuOverhead {overhead}"
        )),
    }
    Ok(rest)
}

fn detect_mtu(host: &Connection) -> anyhow::Result<Option<mtu::Detected>> {
    let routes = host.default_routes_in_use()?;
    let mut uplinks: Vec<_> = routes.iter().flat_map(Route::links).collect();
    uplinks.sort_unstable();
    uplinks.dedup();
    let links = uplinks.into_iter().map(|index| host.link_by_index(index));
    // A link may have been deleted since, with its routes.
    let links = links.filter(|link| !matches!(link, Err(error) if error.is_not_found()));
    let links = links.collect::<Result<Vec<_>, _>>()?;
    if let Some(detected) = mtu::of_default_routes(&links) {
        return Ok(Some(detected));
    }
    // Ports of bridges, one per container, are read only if there is no other link.
    match mtu::of_physical_links(&host.links_without_master()?) {
        Some(detected) => Ok(Some(detected)),
        None => Ok(mtu::of_physical_links(&host.links()?)),
    }
}

/// Enables `bridge-nf-call`, which Kubernetes requires of bridge plugins. Otherwise traffic between
/// pods of one node bypasses the rules of Services.
fn enable_bridge_nf_call() -> anyhow::Result<()> {
    for name in BRIDGE_NF_CALL {
        match Sysctl::new(&["net", "bridge", name]).ensure("1") {
            Err(error) if error.is_not_found() => {
                note(
                    "the kernel module br_netfilter is not loaded, so Services and hostPorts do not work \
                     between pods of this node; mend it by: modprobe br_netfilter",
                );
                break;
            }
            outcome => drop(outcome?),
        }
    }
    Ok(())
}

/// Sysctls below `net.bridge`; they exist only with the module `br_netfilter`.
pub(crate) const BRIDGE_NF_CALL: [&str; 2] =
    ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"];
