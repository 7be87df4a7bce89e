//! The `nf_tables` sets and maps of portmap for each IP version, and the rules that look packets up
//! in them.

use nft::{Field, IpVersion, Rule, Set, SourcePort, TargetType, Type};

use crate::networks::LOCALNET;

/// The two names of a set: the name of its IPv4 variant and the name of its IPv6 variant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetName(&'static str, &'static str);

/// Map for ports that are forwarded on single addresses of the host: from address, protocol and
/// port of the host to address and port of a container.
pub(crate) const ADDRESS_PORTS: SetName = SetName("address-ports4", "address-ports6");

/// Map for ports that are forwarded on all addresses of the host: from protocol and port of the
/// host to address and port of a container.
pub(crate) const PORTS: SetName = SetName("ports4", "ports6");

/// Map from protocol and port to the number of single addresses of the host on which this port is
/// forwarded.
pub(crate) const COUNTS: SetName = SetName("address-port-counts4", "address-port-counts6");

/// Map for ports in [`ADDRESS_PORTS`] with conditions (`conditionsV4`, `conditionsV6`): from
/// address, protocol and port of the host to the chain that checks the conditions.
pub(crate) const ADDRESS_CONDITIONS: SetName =
    SetName("address-conditions4", "address-conditions6");

/// Map for ports in [`PORTS`] with conditions (`conditionsV4`, `conditionsV6`): from protocol and
/// port of the host to the chain that checks the conditions.
pub(crate) const CONDITIONS: SetName = SetName("conditions4", "conditions6");

/// Set of pairs of source and destination address. Translated connections from such a source to
/// such a destination are masqueraded. portmap adds pairs of one address with itself, for a
/// container that connects to its own forwarded port.
pub(crate) const PAIRS: SetName = SetName("masquerade-pairs4", "masquerade-pairs6");

/// Set of container addresses. Connections from 127.0.0.0/8 to these addresses are masqueraded.
/// IPv6 has no such set, because no packet from `::1` leaves the host.
pub(crate) const LOCALHOST: &str = "masquerade-localhost4";

/// Set of pairs of input interface and container address. Translated connections that arrive
/// through that interface and go to that address are masqueraded. The interface is the host's link
/// towards the container: answers to a client behind this link would not pass through the host.
pub(crate) const LINKS: SetName = SetName("masquerade-links4", "masquerade-links6");

/// Set of container addresses. All translated connections to these addresses are masqueraded
/// (`masqAll`).
pub(crate) const PODS: SetName = SetName("masquerade-pods4", "masquerade-pods6");

impl SetName {
    /// Returns the name of the set for `version`.
    pub fn of(self, version: IpVersion) -> &'static str {
        match version {
            IpVersion::V4 => self.0,
            IpVersion::V6 => self.1,
        }
    }
}

/// Returns the map [`ADDRESS_PORTS`] for `version`: the ports that are each forwarded for a single
/// address of the host.
pub(crate) fn address_set(version: IpVersion) -> Set {
    let key = [Type::address(version), Type::Protocol, Type::Port];
    Set::new(ADDRESS_PORTS.of(version), key, pod(version))
}

/// Returns the map [`PORTS`] for `version`: the ports that are forwarded for all addresses of the
/// host.
pub(crate) fn port_set(version: IpVersion) -> Set {
    let key = [Type::Protocol, Type::Port];
    Set::new(PORTS.of(version), key, pod(version))
}

fn pod(version: IpVersion) -> TargetType {
    TargetType::Values(vec![Type::address(version), Type::Port])
}

pub(crate) fn sets(version: IpVersion) -> Vec<Set> {
    let address = Type::address(version);
    let [by_address, by_port] = [address_set(version), port_set(version)];
    let of_ports =
        |name: SetName, key: &Set, target| Set::new(name.of(version), key.key.clone(), target);
    let of_pods = |name, key: &[Type]| Set::new(name, key, TargetType::None);
    let count = TargetType::Count(by_address.name);
    let mut sets = vec![
        of_ports(ADDRESS_CONDITIONS, &by_address, TargetType::Chain),
        of_ports(CONDITIONS, &by_port, TargetType::Chain),
        of_ports(COUNTS, &by_port, count),
        by_address,
        by_port,
        of_pods(PAIRS.of(version), &[address; 2]),
        of_pods(LINKS.of(version), &[Type::InterfaceName, address]),
        of_pods(PODS.of(version), &[address]),
    ];
    if version == IpVersion::V4 {
        sets.push(of_pods(LOCALHOST, &[address]));
    }
    sets
}

/// Returns the rules that send packets for a port with conditions to the chain that checks them.
pub(crate) fn conditions(version: IpVersion) -> [Rule; 2] {
    let rule = || Rule::new("ports of networks with conditions").when_ip(version);
    [
        rule().goto_by(&address_key(version), ADDRESS_CONDITIONS.of(version)),
        rule().goto_by(&PORT_KEY, CONDITIONS.of(version)),
    ]
}

/// Returns the rules that translate destinations to containers (DNAT).
pub(crate) fn translate(version: IpVersion) -> [Rule; 2] {
    let rule = |comment| Rule::new(comment).when_ip(version);
    let [single, every] = [ADDRESS_PORTS, PORTS].map(|it| it.of(version));
    [
        rule("ports of single addresses, which are counted").dnat_by(
            version,
            &address_key(version),
            single,
        ),
        rule("ports of every address").dnat_by(version, &PORT_KEY, every),
    ]
}

/// Returns the rules that masquerade connections: one rule for each `masquerade-…` set.
pub(crate) fn masquerade(version: IpVersion) -> Vec<Rule> {
    let (from, to) = (Field::Source(version), Field::Destination(version));
    let rule = |comment| Rule::new(comment).when_translated().when_ip(version);
    let own = rule("from the pod itself").when_in(&[from, to], PAIRS.of(version));
    let localhost = (version == IpVersion::V4).then(|| {
        rule("from 127.0.0.0/8")
            .when_from(LOCALNET)
            .when_in(&[to], LOCALHOST)
    });
    let others = [
        rule("back by the link that it came by, where answers pass the host by")
            .when_in(&[Field::InputName, to], LINKS.of(version)),
        rule("masqAll").when_in(&[to], PODS.of(version)),
    ];
    let all = [own].into_iter().chain(localhost).chain(others);
    all.map(|rule| rule.masquerade(SourcePort::FullyRandom))
        .collect()
}

fn address_key(version: IpVersion) -> [Field; 3] {
    [
        Field::Destination(version),
        Field::Protocol,
        Field::DestinationPort,
    ]
}

const PORT_KEY: [Field; 2] = [Field::Protocol, Field::DestinationPort];
