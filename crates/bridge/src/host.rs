//! The host's side: the bridge, its addresses and the sysctls that make it work.

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

/// The bridge, up, and the MTU of pairs that are joined to it.
#[derive(Debug, Clone)]
pub(crate) struct Bridge {
    /// As it was found or made.
    pub link: Link,
    /// The host's end of the VLAN that the gateway stands in, where that is not the bridge itself.
    pub vlan_link: Option<Link>,
    /// In bytes.
    pub mtu: u32,
}

impl Bridge {
    /// What bears the gateway's addresses.
    pub fn gateway_link(&self) -> &Link {
        self.vlan_link.as_ref().unwrap_or(&self.link)
    }

    /// What becomes of other addresses on [`Self::gateway_link`].
    pub fn other_address(&self, config: &Config) -> OtherAddress {
        match config.gateway_vlan() {
            // The bridge is the host's, and maybe other networks' gateway, in its own VLAN.
            Some(_) if self.vlan_link.is_none() => OtherAddress::Keep,
            _ => config.other_address,
        }
    }
}

/// Finds the bridge, or makes it, and brings it up.
///
/// # Errors
/// The name belongs to something else; whatever the kernel refuses.
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
    // The one by which it was found may be another of its names, by which sysctls do not go.
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

/// Once up the bridge would take any sandbox's router advertisements (CVE-2020-10749).
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

/// The name of the bridge belongs to a bridge.
///
/// # Errors
/// Code 7, naming what it belongs to.
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

/// A port of a bridge takes no part in IPv6, but where it has it, it has three routes, and the
/// kernel walks through those of all ports whenever a link comes or goes.
pub(crate) fn disable_ipv6(port: &str) {
    if let Err(error) = Sysctl::ipv6(port, "disable_ipv6").ensure_if_present("1") {
        note(format_args!("{:#}", anyhow::Error::from(error)));
    }
}

/// How many ports a bridge holds: `BR_MAX_PORTS` in `net/bridge/br_private.h`, less the bridge
/// itself.
pub(crate) const MOST_PORTS: usize = 1023;

/// The words for a bridge that is full.
pub(crate) fn no_port_left(bridge: &Link) -> anyhow::Error {
    anyhow::anyhow!(
        "bridge {} has {MOST_PORTS} ports, and a Linux bridge holds no more; run fewer containers on this \
         host, or give some a network with another bridge",
        bridge.name
    )
}

/// Several first ADDs may come at once: the one that is late takes what is there.
fn make_bridge(host: &Connection, name: &str, mtu: u32) -> anyhow::Result<Link> {
    match host.add_bridge(name, random_mac()?, mtu) {
        Err(error) if !error.is_already_exists() => return Err(error.into()),
        _ => {}
    }
    // Until its link-local address is known to be nobody else's the host could ask for no pod
    // that it forwards to. It follows from the MAC, which is a bridge's own.
    if let Err(error) = Sysctl::ipv6(name, "accept_dad").ensure_if_present("0") {
        note(format_args!("{:#}", anyhow::Error::from(error)));
    }
    Ok(host.link(name)?)
}

/// A bridge that somebody made without a MAC takes the lowest of its ports', and none when the last one
/// goes. Once chosen, the one that it has stays, so that no neighbour's entry goes stale.
///
/// Of several first ADDs each chooses the same, before any of them adds a port.
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

/// `NET_ADDR_SET`, which netlink does not tell. Where sysfs is not to be seen it may be any.
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

/// Locally administered, and set explicitly, so that it stays whatever its ports have.
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
    // One may have gone since, with its routes.
    let links = links.filter(|link| !matches!(link, Err(error) if error.is_not_found()));
    let links = links.collect::<Result<Vec<_>, _>>()?;
    if let Some(detected) = mtu::of_default_routes(&links) {
        return Ok(Some(detected));
    }
    // The ports of bridges, which all pods have, are looked at only where there is nothing else.
    match mtu::of_physical_links(&host.links_without_master()?) {
        Some(detected) => Ok(Some(detected)),
        None => Ok(mtu::of_physical_links(&host.links()?)),
    }
}

/// Kubernetes requires it of bridge plugins: otherwise traffic between pods of one node
/// passes by the rules that make Services.
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

/// Below `net.bridge`; there only with the module `br_netfilter`.
pub(crate) const BRIDGE_NF_CALL: [&str; 2] =
    ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"];
