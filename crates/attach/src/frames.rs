//! The `nf_tables` table that drops two kinds of frames on bridges: frames of a container with a
//! source MAC other than the container's, and the host's copies of frames that a promiscuous bridge
//! delivers to containers (see [`duplicates`]).

use netlink::{Link, MacAddress};
use netns::Sysctl;
use nft::{
    Chain, Element, Family, Field, Hook, IpVersion, Rule, Set, Table, TargetType, Type, Value,
};

use crate::addressing::hosts;
use crate::protection::Subject;

/// Returns the elements for the container's port. They make the rules drop frames that enter the
/// bridge through this port with a source MAC other than the container's.
pub(crate) fn sources(subject: &Subject<'_>) -> [Element; 2] {
    let MacAddress(mac) = subject.mac;
    let port = Value::InterfaceName(subject.port);
    [
        Element::new(CHECKED_PORTS, &[port], subject.owner),
        Element::new(SOURCES, &[port, Value::EtherAddress(mac)], subject.owner),
    ]
}

/// Returns one element for each of the container's addresses. The elements make a rule drop frames
/// that the host sends with the bridge's MAC as source MAC and such an address as source address.
///
/// These frames are duplicates. A promiscuous bridge delivers a frame of the container to the port
/// of its destination and also gives the host a copy. The host routes this copy back to the bridge.
///
/// The addresses of an IP version get elements only if netfilter sees bridged frames of this
/// version ([`sees_frames`]). The reason is frames to a Kubernetes Service. If netfilter sees
/// them, it translates them (DNAT) on the bridge, which delivers them to a pod: the host's frames
/// are duplicates. Otherwise only the host translates them and sends them to the pod. The rule must
/// not drop these frames, because the pod receives no others.
pub(crate) fn duplicates(subject: &Subject<'_>) -> anyhow::Result<Vec<Element>> {
    let Some((bridge, MacAddress(mac))) = subject.bridge.and_then(|it| Some((it, it.mac?))) else {
        return Ok(Vec::new());
    };
    let sysctls = nf_call_sysctls()?;
    let [v4, v6] = sees_frames(bridge, sysctls.each_ref().map(Option::as_deref));
    let addresses = hosts(subject.ips).into_iter();
    let concerned = addresses.filter(|it| if it.is_ipv4() { v4 } else { v6 });
    let elements = concerned.map(|address| {
        let set = if address.is_ipv4() {
            ROUTED_V4
        } else {
            ROUTED_V6
        };
        let key = [Value::EtherAddress(mac), Value::Address(address)];
        Element::new(set, &key, subject.owner)
    });
    Ok(elements.collect())
}

/// Returns whether netfilter sees the frames that `bridge` forwards, first of IPv4, then of IPv6:
/// whether the sysctl or the bridge's own flag is on. `sysctls` are the values of [`BRIDGE_NF_CALL`];
/// without the module `br_netfilter`, these do not exist, and netfilter sees no frames.
pub fn sees_frames(bridge: &Link, sysctls: [Option<&str>; 2]) -> [bool; 2] {
    let [v4, v6] = sysctls;
    let [own_v4, own_v6] = bridge.nf_call.map_or([false; 2], |it| [it.v4, it.v6]);
    [(v4, own_v4), (v6, own_v6)].map(|(sysctl, own)| match sysctl {
        None => false,
        Some(value) => own || value == "1",
    })
}

/// Returns the values of [`BRIDGE_NF_CALL`], `None` without the module `br_netfilter`.
///
/// # Errors
/// A sysctl exists and cannot be read.
pub fn nf_call_sysctls() -> Result<[Option<String>; 2], netns::Error> {
    let read = |name| match Sysctl::new(&["net", "bridge", name]).read() {
        Err(error) if error.is_not_found() => Ok(None),
        value => value.map(Some),
    };
    let [v4, v6] = BRIDGE_NF_CALL.map(read);
    Ok([v4?, v6?])
}

/// Returns the table [`FRAMES_TABLE`] with its sets and rules, but without elements.
pub(crate) fn table() -> Table {
    let set = |name, key: &[Type]| Set::new(name, key, TargetType::None);
    let forged = Rule::new("not from the MAC of the container")
        .when_in(&[Field::InputName], CHECKED_PORTS)
        .when_not_in(&[Field::InputName, Field::EtherSource], SOURCES)
        .drop();
    let copies = [(IpVersion::V4, ROUTED_V4), (IpVersion::V6, ROUTED_V6)];
    let copies = copies.into_iter().map(|(version, routed)| {
        Rule::new("the host's copy of what the bridge delivers itself")
            .when_frame_of(version)
            .when_in(&[Field::EtherSource, Field::Source(version)], routed)
            .drop()
    });
    Table {
        family: Family::Bridge,
        name: FRAMES_TABLE,
        sets: vec![
            set(CHECKED_PORTS, &[Type::InterfaceName]),
            set(SOURCES, &[Type::InterfaceName, Type::EtherAddress]),
            set(ROUTED_V4, &[Type::EtherAddress, Type::Ipv4Address]),
            set(ROUTED_V6, &[Type::EtherAddress, Type::Ipv6Address]),
        ],
        chains: vec![
            Chain::filter(
                "prerouting",
                Hook::Prerouting,
                BEFORE_TRANSLATION,
                vec![forged],
            ),
            Chain::filter("output", Hook::Output, AS_FILTERS, copies.collect()),
        ],
    }
}

/// Name of the table of family `bridge`. Its rules drop frames with a forged source MAC, and
/// duplicate frames.
pub const FRAMES_TABLE: &str = "cni-bridge";

const CHECKED_PORTS: &str = "checked-ports";
const SOURCES: &str = "sources";
const ROUTED_V4: &str = "routed4";
const ROUTED_V6: &str = "routed6";

/// Priority of the chain that drops frames with a forged source MAC: `NF_BR_PRI_NAT_DST_BRIDGED`,
/// the lowest bridge priority that has a name in nft(8). So the chain runs before most chains of
/// other programs.
const BEFORE_TRANSLATION: i32 = -300;

/// Priority of the chain that drops duplicate frames: `NF_BR_PRI_FILTER_BRIDGED`, which nft(8)
/// calls `filter`.
const AS_FILTERS: i32 = -200;

/// Sysctls below `net.bridge`: whether netfilter sees bridged frames, first of IPv4, then of IPv6.
/// They exist only with the module `br_netfilter`.
pub const BRIDGE_NF_CALL: [&str; 2] = ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"];
