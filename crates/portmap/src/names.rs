//! The names of the sets of each IP family, and the rules that look packets up in these sets.

use std::net::{IpAddr, Ipv4Addr};

use ipnetwork::IpNetwork;
use nft::{Field, IpVersion, Rule, Set, SourcePort, TargetType, Type};

/// The names of one IP family's sets, and its fields and types.
pub(crate) struct Names {
    pub version: IpVersion,
    pub address: Type,
    pub source: Field,
    pub destination: Field,
    /// Map from address, protocol and port of the host to address and port of a container.
    pub address_ports: &'static str,
    /// Map from protocol and port of the host to address and port of a container.
    pub ports: &'static str,
    /// Map from protocol and port to the number of single addresses of the host with such a port.
    pub counts: &'static str,
    /// Map from address, protocol and port to a chain with conditions.
    pub address_conditions: &'static str,
    pub conditions: &'static str,
    /// Set of source and destination address. Translated connections between them are masqueraded.
    pub pairs: &'static str,
    /// Set of containers whose clients from 127.0.0.0/8 are masqueraded. IPv6 has no such set,
    /// because no packet from `::1` leaves the host.
    pub localhost: Option<&'static str>,
    /// Set of input interface and container. Translated connections from that interface to that
    /// container are masqueraded.
    pub links: &'static str,
    /// Set of containers whose clients are all masqueraded.
    pub pods: &'static str,
}

impl Names {
    pub fn address_key(&self) -> [Field; 3] {
        [self.destination, Field::Protocol, Field::DestinationPort]
    }

    pub fn address_set(&self) -> Set {
        let key = vec![self.address, Type::Protocol, Type::Port];
        set(self.address_ports, key, self.pod())
    }

    pub fn port_set(&self) -> Set {
        set(self.ports, vec![Type::Protocol, Type::Port], self.pod())
    }

    pub fn pod(&self) -> TargetType {
        TargetType::Values(vec![self.address, Type::Port])
    }

    pub fn sets(&self) -> Vec<Set> {
        let [by_address, by_port] = [self.address_set(), self.port_set()];
        let conditions = |name, key: &Set| set(name, key.key.clone(), TargetType::Chain);
        let link = vec![Type::InterfaceName, self.address];
        let pods = |name| set(name, vec![self.address], TargetType::None);
        let mut sets = vec![
            conditions(self.address_conditions, &by_address),
            conditions(self.conditions, &by_port),
            by_address,
            by_port,
            set(self.pairs, vec![self.address; 2], TargetType::None),
            set(self.links, link, TargetType::None),
            pods(self.pods),
        ];
        sets.extend(self.localhost.map(pods));
        let count = TargetType::Count(self.address_ports);
        sets.push(set(self.counts, vec![Type::Protocol, Type::Port], count));
        sets
    }

    pub fn conditions(&self) -> [Rule; 2] {
        let rule = || Rule::new("ports of networks with conditions").when_ip(self.version);
        [
            rule().goto_by(&self.address_key(), self.address_conditions),
            rule().goto_by(&PORT_KEY, self.conditions),
        ]
    }

    /// Returns the rules that translate. The comment of the rule for single addresses differs from
    /// that in versions without counts. So an ADD notices a table of such a version, repairs it and
    /// counts its ports.
    pub fn translate(&self) -> [Rule; 2] {
        let version = self.version;
        let rule = |comment| Rule::new(comment).when_ip(version);
        [
            rule("ports of single addresses, which are counted").dnat_by(
                version,
                &self.address_key(),
                self.address_ports,
            ),
            rule("ports of every address").dnat_by(version, &PORT_KEY, self.ports),
        ]
    }

    pub fn masquerade(&self) -> Vec<Rule> {
        let (from, to) = (self.source, self.destination);
        let rule = |comment| Rule::new(comment).when_translated().when_ip(self.version);
        let random = SourcePort::FullyRandom;
        let own = rule("from the pod itself").when_in(&[from, to], self.pairs);
        let localhost = self.localhost.iter().flat_map(|set| {
            let localnet = network(Ipv4Addr::new(127, 0, 0, 0), 8);
            localnet.map(|it| rule("from 127.0.0.0/8").when_from(it).when_in(&[to], set))
        });
        let others = [
            rule("back by the link that it came by, where answers pass the host by")
                .when_in(&[Field::InputName, to], self.links),
            rule("masqAll").when_in(&[to], self.pods),
        ];
        let all = [own].into_iter().chain(localhost).chain(others);
        all.map(|rule| rule.masquerade(random)).collect()
    }
}

/// Returns an iterator with the network, or an empty one if `prefix` is too long.
pub(crate) fn network(address: impl Into<IpAddr>, prefix: u8) -> impl Iterator<Item = IpNetwork> {
    IpNetwork::new(address.into(), prefix).into_iter()
}

fn set(name: &'static str, key: Vec<Type>, target: TargetType) -> Set {
    Set { name, key, target }
}

pub(crate) fn names(version: IpVersion) -> &'static Names {
    match version {
        IpVersion::V4 => &V4,
        IpVersion::V6 => &V6,
    }
}

pub(crate) const FAMILIES: [&Names; 2] = [&V4, &V6];

pub(crate) static V4: Names = Names {
    version: IpVersion::V4,
    address: Type::Ipv4Address,
    source: Field::Ipv4Source,
    destination: Field::Ipv4Destination,
    address_ports: "address-ports4",
    counts: "address-port-counts4",
    ports: "ports4",
    address_conditions: "address-conditions4",
    conditions: "conditions4",
    pairs: "masquerade-pairs4",
    localhost: Some("masquerade-localhost4"),
    links: "masquerade-links4",
    pods: "masquerade-pods4",
};

pub(crate) static V6: Names = Names {
    version: IpVersion::V6,
    address: Type::Ipv6Address,
    source: Field::Ipv6Source,
    destination: Field::Ipv6Destination,
    address_ports: "address-ports6",
    counts: "address-port-counts6",
    ports: "ports6",
    address_conditions: "address-conditions6",
    conditions: "conditions6",
    pairs: "masquerade-pairs6",
    localhost: None,
    links: "masquerade-links6",
    pods: "masquerade-pods6",
};

const PORT_KEY: [Field; 2] = [Field::Protocol, Field::DestinationPort];
