//! Missing kernel features, found by trials in a temporary network namespace.

use std::net::Ipv4Addr;

use ipnetwork::IpNetwork;
use netlink::{LinkChange, MacAddress, Request, VethEnd, VethPair};
use netns::Netns;
use nft::{
    BaseChain, Chain, ChainKind, Family, Field, Hook, IpVersion, Rule, Set, SourcePort, Table,
    TargetType, Type,
};

/// A missing kernel feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// The kernel's error.
    pub reason: String,
    /// The plugin and keys that need the feature.
    pub need: Need,
    /// The effect on plugins.
    pub consequence: Consequence,
}

/// Effect of a missing feature on plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// Every ADD fails.
    AddFails,
    /// Only tc limits what pods send.
    LimitsEvadable,
}

/// A plugin, and the keys of which any one causes the need; without keys the plugin always needs the feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// The plugin.
    pub plugin: &'static str,
    /// The keys.
    pub keys: &'static [&'static str],
}

/// Returns all missing features.
///
/// # Errors
/// The kernel refuses the namespace, or a socket in it.
pub(super) fn lacks() -> anyhow::Result<Vec<Lack>> {
    Netns::run_in_new(|| {
        let mut lacks = links()?;
        lacks.extend(limits()?);
        lacks.extend(tables()?);
        Ok(lacks)
    })?
}

/// Tries bridges, pairs and VLANs.
fn links() -> anyhow::Result<Vec<Lack>> {
    let connection = netlink::Connection::open()?;
    let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
    let bridge = connection.add_bridge(BRIDGE, mac(1), MTU);
    if let Err(error) = bridge {
        return Ok(vec![lack(error, ALWAYS)]);
    }
    let end = |name, last| VethEnd {
        name,
        mac: mac(last),
    };
    let pair = VethPair {
        host: end("host", 2),
        container: end("container", 3),
        mtu: MTU,
        master: Some(connection.link(BRIDGE)?.index),
        alias: "a pair to try whether there can be one",
        sandbox: &Netns::own()?,
    };
    let pair = connection.add_veth(&pair, Vec::new()).map(drop);
    let filtering = Request::change_link(BRIDGE, &LinkChange::VlanFiltering);
    let filtering = connection.execute(vec![filtering]);
    let tried = [(pair, ALWAYS), (filtering, VLANS)].into_iter();
    let lacks = tried.filter_map(|(tried, need)| Some(lack(tried.err()?, need)));
    Ok(lacks.collect())
}

fn limits() -> anyhow::Result<Vec<Lack>> {
    let modules = tc::missing(&netlink::Connection::open()?)?.into_iter();
    let lacks = modules.map(|module| Lack {
        reason: format!("the kernel lacks {module}, and modprobe {module} may help"),
        need: match module {
            tc::module::HTB => SUBNETS,
            _ => RATES,
        },
        consequence: Consequence::AddFails,
    });
    Ok(lacks.collect())
}

/// Tries the parts of the plugins' tables, each on its own.
fn tables() -> anyhow::Result<Vec<Lack>> {
    let connection = nft::Connection::open()?;
    let frames = Rule::new("").when_in(&[Field::InputName, Field::EtherSource], SET);
    let frames = (frames.drop(), [Type::InterfaceName, Type::EtherAddress]);
    let masquerade = Rule::new("").when_translated().when_ip(IpVersion::V4);
    let masquerade = masquerade.masquerade(SourcePort::FullyRandom);
    let ports = [Field::Protocol, Field::DestinationPort];
    let translate = Rule::new("").when_to_host().when_ip(IpVersion::V4);
    let elsewhere = IpNetwork::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST));
    let translate = translate.unless_to(elsewhere);
    let translate = translate.dnat_by(IpVersion::V4, &ports, MAP);
    let key = [Type::Protocol, Type::Port];
    let (pre, post) = (Hook::Prerouting, Hook::Postrouting);
    let tried = [
        (table((Family::Bridge, pre), frames), FRAMES),
        (table((Family::Inet, post), (masquerade, key)), MASQUERADE),
        (table((Family::Inet, pre), (translate, key)), PORTS),
    ];
    let tried = tried
        .iter()
        .map(|(table, need)| (connection.dry_run(table), *need));
    let lacks = tried.filter_map(|(tried, need)| Some(lack(tried.err()?, need)));
    Ok(lacks.chain(backstops(&connection)).collect())
}

/// Tries the tables of `bandwidth`, for ports of bridges and for other links.
fn backstops(connection: &nft::Connection) -> Option<Lack> {
    let limited = || Rule::new("").when_in(&[Field::InputName], SET).drop();
    let tried = [Family::Bridge, Family::Inet].map(|family| {
        let set = Set {
            name: SET,
            key: vec![Type::InterfaceName],
            target: TargetType::Limit,
        };
        let chain = chain((ChainKind::Filter, Hook::Prerouting), limited());
        connection.dry_run(&Table {
            family,
            name: TABLE,
            sets: vec![set],
            chains: vec![chain],
        })
    });
    let error = tried.into_iter().find_map(Result::err)?;
    Some(Lack {
        consequence: Consequence::LimitsEvadable,
        ..lack(error, RATES)
    })
}

/// Returns a table with one rule, and with a set and a map for look-ups.
fn table((family, hook): (Family, Hook), (rule, key): (Rule, [Type; 2])) -> Table {
    let kind = match family {
        Family::Bridge => ChainKind::Filter,
        _ => ChainKind::Nat,
    };
    let pod = TargetType::Values(vec![Type::Ipv4Address, Type::Port]);
    let set = |name, target| Set {
        name,
        key: key.to_vec(),
        target,
    };
    Table {
        family,
        name: TABLE,
        sets: vec![set(SET, TargetType::None), set(MAP, pod)],
        chains: vec![chain((kind, hook), rule)],
    }
}

fn chain((kind, hook): (ChainKind, Hook), rule: Rule) -> Chain {
    Chain {
        name: TABLE.to_owned(),
        base: Some(BaseChain {
            kind,
            hook,
            priority: 100,
        }),
        rules: vec![rule],
    }
}

fn lack(error: impl Into<anyhow::Error>, need: Need) -> Lack {
    Lack {
        reason: super::message(error),
        need,
        consequence: Consequence::AddFails,
    }
}

const fn of(plugin: &'static str, keys: &'static [&'static str]) -> Need {
    Need { plugin, keys }
}

const ALWAYS: Need = of("bridge", &[]);
const VLANS: Need = of("bridge", &["vlan", "vlanTrunk"]);
const FRAMES: Need = of("bridge", &["macspoofchk", "promiscMode"]);
const MASQUERADE: Need = of("bridge", &["ipMasq"]);
const PORTS: Need = of("portmap", &[]);
const RATES: Need = of("bandwidth", &[]);
const SUBNETS: Need = of("bandwidth", &["shapedSubnets", "unshapedSubnets"]);

/// In bytes.
const MTU: u32 = 1500;

/// The name is free in the temporary namespace.
const BRIDGE: &str = "trial";

/// Name of the table and of its chain.
const TABLE: &str = "try";
const SET: &str = "set";
const MAP: &str = "map";
