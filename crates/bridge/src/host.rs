//! The host's side: the bridge, its addresses and the sysctls that make it work.

use std::fs::File;
use std::io::Read as _;

use anyhow::{Context as _, bail};
use cni::{Error, note};
use ipnetwork::IpNetwork;
use netlink::{Address, Connection, Dad, Link, LinkChange, LinkKind, MacAddress, Request, Route};
use netns::Sysctl;

use crate::config::{BridgeNfCall, Config, Gateway, MtuChoice, OtherAddress, PortMode};
use crate::mtu;
use crate::vlan::{self, Vlans};

/// The bridge, up, and the MTU of pairs that are joined to it.
#[derive(Debug, Clone)]
pub(crate) struct Bridge {
    /// As it was found or made.
    pub link: Link,
    /// The host's end of the VLAN that the gateway stands in, where it stands in one.
    pub vlan_link: Option<Link>,
    /// In bytes.
    pub mtu: u32,
    /// Of the link that bears the gateway's.
    addresses: Vec<Address>,
}

impl Bridge {
    /// What bears the gateway's addresses.
    pub fn gateway_link(&self) -> &Link {
        self.vlan_link.as_ref().unwrap_or(&self.link)
    }
}

/// Finds the bridge, or makes it, and brings it up.
///
/// # Errors
/// The name belongs to something else; whatever the kernel refuses.
pub(crate) fn ensure_bridge(host: &Connection, config: &Config) -> anyhow::Result<Bridge> {
    let mtu = choose_mtu(host, config.mtu)?;
    let name = config.bridge.as_str();
    let link = match host.find_link(name)? {
        Some(link) => link,
        None => make_bridge(host, name, mtu)?,
    };
    expect_bridge(&link)?;
    let link = vlan::ensure_filtering(host, link, &config.vlans)?;
    // Once up it would take any sandbox's router advertisements (CVE-2020-10749).
    Sysctl::ipv6(name, "accept_ra").ensure_if_present("0")?;
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
    let vlan_link = match &config.vlans {
        Vlans::Access { vlan, gateway_link } if config.gateway != Gateway::None => Some(
            vlan::ensure_gateway_link(host, &link, (*vlan, gateway_link))?,
        ),
        _ => None,
    };
    let bears = vlan_link.as_ref().unwrap_or(&link).index;
    Ok(Bridge {
        addresses: host.addresses(bears)?,
        link,
        vlan_link,
        mtu,
    })
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
    Ok(host.link(name)?)
}

/// Locally administered, and set explicitly: a bridge left to itself takes the MAC of one
/// of its ports, and changes it when that goes.
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
    let routes = host.routes()?;
    let mut uplinks: Vec<_> = routes
        .iter()
        .filter(|route| route.is_default())
        .flat_map(Route::links)
        .collect();
    uplinks.sort_unstable();
    uplinks.dedup();
    let links = uplinks.into_iter().map(|index| host.link_by_index(index));
    let links = links.collect::<Result<Vec<_>, _>>()?;
    match mtu::of_default_routes(&links) {
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

/// Gives the bridge the gateways' addresses and lets the host forward for them.
///
/// # Errors
/// Code 7: another address is in the way; whatever the kernel refuses.
pub(crate) fn ensure_gateways(
    host: &Connection,
    bridge: &Bridge,
    gateways: &[IpNetwork],
    other: OtherAddress,
) -> anyhow::Result<()> {
    if gateways.is_empty() {
        return Ok(());
    }
    if gateways.iter().any(IpNetwork::is_ipv6) {
        Sysctl::ipv6(&bridge.gateway_link().name, "disable_ipv6").ensure("0")?;
        enable_ipv6_forwarding(host)?;
    }
    if gateways.iter().any(IpNetwork::is_ipv4) {
        Sysctl::new(&["net", "ipv4", "ip_forward"]).ensure("1")?;
    }
    for gateway in gateways {
        ensure_gateway(host, bridge, *gateway, other)?;
    }
    Ok(())
}

fn ensure_gateway(
    host: &Connection,
    bridge: &Bridge,
    gateway: IpNetwork,
    other: OtherAddress,
) -> anyhow::Result<()> {
    let (link, addresses) = (bridge.gateway_link(), &bridge.addresses);
    if addresses.iter().any(|it| it.address == gateway) {
        return Ok(());
    }
    let name = &link.name;
    for Address { address, .. } in addresses.iter().filter(|it| is_in_the_way(it, gateway)) {
        match other {
            OtherAddress::Replace => {
                note(format_args!(
                    "forceAddress: {name} loses {address} to {gateway}"
                ));
                host.execute(vec![Request::delete_address(link.index, *address)])?;
            }
            OtherAddress::Refuse => {
                let reason = format!(
                    "{name} bears {address}, not {gateway}; remove it, or replace it by forceAddress: true"
                );
                bail!(Error::invalid("bridge", reason));
            }
        }
    }
    match host.execute(vec![Request::add_address(link.index, gateway, Dad::Skip)]) {
        Err(error) if !error.is_already_exists() => Err(error.into()),
        _ => Ok(()),
    }
}

/// A bridge has one IPv4 network, and as many of IPv6 as do not overlap.
fn is_in_the_way(found: &Address, gateway: IpNetwork) -> bool {
    let address = found.address;
    match (address, gateway) {
        (IpNetwork::V4(_), IpNetwork::V4(_)) => true,
        (IpNetwork::V6(_), IpNetwork::V6(_)) => {
            address.contains(gateway.ip()) || gateway.contains(address.ip())
        }
        _ => false,
    }
}

/// Turning forwarding on makes the kernel drop default routes that it learnt from router
/// advertisements and ignore later ones, unless `accept_ra` says 2.
fn enable_ipv6_forwarding(host: &Connection) -> anyhow::Result<()> {
    let forwarding = Sysctl::ipv6("all", "forwarding");
    if forwarding.read()? == "1" {
        return Ok(());
    }
    let routes = host.routes()?;
    let learnt = routes
        .iter()
        .filter(|it| it.is_default() && it.is_from_router_advertisement);
    for index in learnt.flat_map(Route::links) {
        let uplink = host.link_by_index(index)?;
        let accept_ra = Sysctl::ipv6(&uplink.name, "accept_ra");
        if accept_ra.read()? == "1" {
            accept_ra.ensure("2")?;
            note(format_args!(
                "{} learnt its default route from a router advertisement: accept_ra is 2 now, so that it \
                 keeps the route while this host forwards",
                uplink.name
            ));
        }
    }
    forwarding.ensure("1")?;
    Ok(())
}
