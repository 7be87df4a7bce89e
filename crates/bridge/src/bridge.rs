//! The host's side: the bridge, its MTU and its sysctls.

use std::fs::{self, File};
use std::io::Read as _;

use anyhow::Context as _;
use attach::{HOST_EXPOSED, HostSide, MAX_PORTS, bridge_mac, harden, no_port_left};
use cni::{CniArgs, Error, note, note_failure};
use netlink::{
    Connection, Link, LinkChange, LinkKind, MacAddress, NewKind, NewLink, Request, created,
};
use netns::Sysctl;

use crate::host_end::HostEnd;
use crate::{Config, vlan};

/// Finds or creates the bridge, sets its MAC, VLAN filtering, flags and sysctls as far as needed, and
/// brings it up. `args` are the caller's `CNI_ARGS`. If the gateway addresses belong to a VLAN, also
/// does what [`HostEnd::ensure`] does. Returns the new state.
///
/// # Errors
/// - Code 2: the kernel does not support VLAN filtering, and the network has VLANs.
/// - Code 7: a link of another kind has the name of the bridge or of its VLAN link, or the MTU is
///   invalid.
/// - Code 100: the kernel refuses a request.
pub(crate) fn ensure(
    host: &Connection,
    config: &Config,
    args: &CniArgs,
) -> anyhow::Result<HostSide> {
    cni::step("ensure the bridge");
    let mtu = config.mtu.resolve(host)?;
    let asked = config.bridge.as_str();
    let link = match host.find_link(asked)? {
        Some(link) => link,
        None => make_bridge(host, config, mtu)?,
    };
    expect_bridge(&link)?;
    vlan::expect_filterable(host, &link, &config.vlans)?;
    let host_end = HostEnd::find(host, &link, config.gateway_vlan())?;
    let link = vlan::ensure_filtering(host, ensure_mac(host, link)?, &config.vlans)?;
    let link = config.frame_filter.ensure(host, link, args)?;
    // The configured name may be an alternative name of the link. Sysctls need the main name.
    let name = link.name.as_str();
    let mut unset = Vec::new();
    // Otherwise, a container could change the host's routes by router advertisements
    // (CVE-2020-10749). A bridge of another program may be the host's uplink, which needs them.
    if config.is_gateway() || is_made_by_add(&link) {
        let ignored = Sysctl::ipv6(name, "accept_ra").ensure("0");
        unset.extend(harden(ignored, HOST_EXPOSED)?);
    }
    let mut changes = Vec::new();
    if !link.is_up {
        changes.push(LinkChange::Up);
    }
    if config.is_promiscuous && !link.is_promiscuous {
        changes.push(LinkChange::Promiscuous(true));
    }
    let requests = changes.iter().map(|it| Request::change_link(name, it));
    host.execute(requests.collect::<Vec<_>>())?;
    let vlan_link = host_end.ensure(host, &link, &mut unset)?;
    Ok(HostSide {
        mtu,
        bridge: Some(link),
        vlan_link,
        unset,
    })
}

/// Returns whether ADD made the bridge, by its MAC. The MAC is part of the message that creates the
/// bridge, so a concurrent ADD never takes the new bridge for one of another program.
fn is_made_by_add(bridge: &Link) -> bool {
    bridge.mac.is_some_and(|it| it.0.starts_with(&MADE_BY_ADD))
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
        "{} exists and is of kind {}, not bridge; choose another name",
        link.name, link.kind
    );
    Err(Error::invalid("bridge", reason))
}

/// Checks that the configured bridge has a free port. Writes a message to standard error if few are
/// left, or if none is left and `statusWhenFull` is "warn". Accepts a bridge that does not exist,
/// because ADD creates it.
///
/// # Errors
/// Code 50: another kind of link has the bridge's name, the bridge may not filter VLANs, or it has no
/// free port and `statusWhenFull` is "fail".
pub(crate) fn probe(config: &Config) -> anyhow::Result<()> {
    let connection = Connection::open()?;
    if let Some(link) = connection.find_link(config.bridge.as_str())? {
        expect_bridge(&link).map_err(Error::unavailable)?;
        vlan::expect_filterable(&connection, &link, &config.vlans).map_err(Error::unavailable)?;
        let ports = connection.port_count(link.index)?;
        if ports >= MAX_PORTS {
            let reason = no_port_left(&link).to_string();
            config.when_full.report(reason)?;
        } else if ports >= NEARLY_FULL {
            let most = MAX_PORTS;
            note!("bridge {} has {ports} of at most {most} ports", link.name);
        }
    }
    Ok(())
}

/// Creates the bridge. If a concurrent ADD creates it first, the function returns that bridge.
///
/// # Errors
/// - Code 2: the kernel does not support VLAN filtering, and the network has VLANs. It then creates
///   no bridge.
/// - Code 100: the kernel refuses a request.
fn make_bridge(host: &Connection, config: &Config, mtu: u32) -> anyhow::Result<Link> {
    let (name, mac) = (config.bridge.as_str(), random_mac()?);
    let kind = if config.vlans.is_empty() {
        NewKind::Bridge
    } else {
        NewKind::FilteringBridge
    };
    let bridge = NewLink {
        mac: Some(mac),
        mtu: Some(mtu),
        ..NewLink::of(name, kind)
    };
    created(host.add_link(&bridge)).map_err(|it| vlan::refusal(it, &config.vlans))?;
    // Duplicate address detection is unnecessary: the link-local address follows from the MAC,
    // which only this bridge has. The detection would delay the neighbour requests that the host
    // sends to containers.
    note_failure(Sysctl::ipv6(name, "accept_dad").ensure_if_present("0"));
    Ok(host.link(name)?)
}

/// Pins the MAC of a bridge whose MAC no program has set, such as a bridge that an operator
/// created. Sets the bridge's current MAC explicitly, or [`bridge_mac`] if the bridge has none.
///
/// The kernel changes a MAC that no program has set: to the lowest MAC of the ports, and to all
/// zeros after the last port has left. After such a change, the containers' neighbour caches would
/// have a wrong MAC for the bridge.
///
/// Concurrent ADDs that find such a bridge all set the same MAC, before any of them adds a port.
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

/// Returns whether a program set the MAC of the bridge: `addr_assign_type` is `NET_ADDR_SET`.
/// Netlink does not report this attribute, so the function reads sysfs. Returns `false` if sysfs
/// cannot be read.
fn is_mac_chosen(bridge: &str) -> bool {
    let mut kind = [0];
    let file = File::open(format!("/sys/class/net/{bridge}/addr_assign_type"));
    let read = file.and_then(|mut file| file.read_exact(&mut kind));
    read.is_ok() && kind == *b"3"
}

fn mac_of_this_boot(bridge: &str) -> anyhow::Result<MacAddress> {
    let file = "/proc/sys/kernel/random/boot_id";
    let boot_id = fs::read_to_string(file).with_context(|| format!("read {file}"))?;
    Ok(bridge_mac(&boot_id, bridge))
}

/// Returns a random MAC for a new bridge, which starts with [`MADE_BY_ADD`]. The kernel keeps a MAC
/// that is set explicitly. It derives any other MAC of a bridge from the MACs of the ports.
fn random_mac() -> anyhow::Result<MacAddress> {
    let mut bytes = [0; 6];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.context("read /dev/urandom")?;
    for (byte, mark) in bytes.iter_mut().zip(MADE_BY_ADD) {
        *byte = mark;
    }
    Ok(MacAddress(bytes))
}

/// First bytes of the MAC of each bridge that ADD makes. Such a MAC is locally administered.
const MADE_BY_ADD: [u8; 2] = [0x0a, 0x62];

/// Number of used ports from which on STATUS writes a message: 90 % of the maximum.
const NEARLY_FULL: usize = MAX_PORTS * 9 / 10;
