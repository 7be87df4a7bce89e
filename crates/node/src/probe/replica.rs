//! A copy of the node in a temporary network namespace: the node's firewall rules, and the links on
//! a packet's path.

use std::net::IpAddr;

use attach::HOST_LINK_PREFIX;
use ipnetwork::IpNetwork;
use netlink::{Connection, Dad, Link, LinkChange, MacAddress, NewRoute, ProbeLink, Request};
use netns::{Netns, Sysctl};
use nft::{Copied, RulePlace, Tracer};

use super::rules::{Rules, Saved};
use super::stage::{Path, Stage};
use super::traffic::{self, Outcome, Sides};

/// What happened to the packets in a copy of the node's rules.
#[derive(Debug)]
pub struct Trial {
    /// The outcome on each path.
    pub outcomes: Vec<(Path, Outcome)>,
    /// Rules of `nf_tables` without which the packets were sent, because the kernel refuses a copy
    /// of them.
    pub left_out: Vec<RulePlace>,
    /// Paths on which packets pass only if the plugin `firewall` permits them. Empty if the
    /// network's list already contains this plugin.
    pub permitted: Vec<Path>,
    /// The address from which another host receives the pod's TCP packets: the pod's own, unless a
    /// rule of the node masquerades it. `None` if none arrived.
    pub sender: Option<IpAddr>,
}

/// Creates a network namespace with a copy of the node's rules and links, and sends a packet
/// through it on each path. Returns the outcomes of the packets, and deletes the namespace.
pub(super) fn run(rules: &Rules, stage: &Stage) -> anyhow::Result<Trial> {
    Netns::run_in_new(|| {
        let sides = set_up(stage)?;
        let copied = load(rules)?;
        if let Some(config) = &stage.permission {
            firewall::permit(config, stage.pod.ip())?;
        }
        let port = port_name();
        let links = [&stage.access.name, &stage.uplink.name, &port].map(String::as_str);
        let tracer = Tracer::start(&nft::Connection::open()?, &links)?;
        let (mut outcomes, sender) = traffic::outcomes(&sides, stage, &tracer)?;
        for (_, outcome) in &mut outcomes {
            match outcome {
                Outcome::Ended(ended) => ended.place = copied.original(&ended.place),
                Outcome::Lost(rule) => *rule = rules.legacy.iter().find_map(Saved::dropping),
                Outcome::Passed => {}
            }
        }
        Ok(Trial {
            outcomes,
            left_out: copied.left_out,
            permitted: Vec::new(),
            sender,
        })
    })?
}

/// Sets up links and sysctls of the copy of the node, which is this thread's network namespace.
/// Also creates the namespaces of the simulated pod and remote host, and returns them.
fn set_up(stage: &Stage) -> anyhow::Result<Sides> {
    prepared()?;
    let sides = Sides {
        pod: Netns::run_in_new(prepared)??,
        elsewhere: Netns::run_in_new(prepared)??,
    };
    Sysctl::new(&["net", "ipv4", "ip_forward"]).ensure("1")?;
    Sysctl::ipv6("all", "forwarding").ensure_if_present("1")?;
    for (key, value) in &stage.bridge_calls {
        Sysctl::new(&["net", "bridge", key]).ensure_if_present(value)?;
    }
    connect(&sides, stage)?;
    Ok(sides)
}

fn connect(sides: &Sides, stage: &Stage) -> anyhow::Result<()> {
    let connection = Connection::open()?;
    let access = &stage.access;
    let uplink = ProbeLink::Pair(&sides.elsewhere, FAR_END);
    connection.add_probe_link(&stage.uplink, uplink)?;
    let mut names = vec!["lo", &access.name, &stage.uplink.name];
    let pair = ProbeLink::Pair(&sides.pod, IN_POD);
    let port = port_of(access);
    if stage.is_routed() {
        connection.add_probe_link(access, pair)?;
    } else {
        connection.add_probe_link(access, ProbeLink::Bridge)?;
        // The kernel chooses the port's index. The bridge and the uplink need the indexes that
        // `stage` gives, so the port is created last and cannot take one of these.
        connection.add_probe_link(&port, pair)?;
        names.push(&port.name);
    }
    let mut requests: Vec<_> = names.iter().map(|it| up(it)).collect();
    let addresses = stage.addresses.iter();
    requests.extend(addresses.map(|(link, it)| Request::add_address(*link, *it, Dad::Skip)));
    let (pod, elsewhere) = (stage.pod.ip(), traffic::elsewhere(stage.pod.is_ipv4()));
    if stage.is_routed() {
        requests.push(route(pod.into(), None, access.index));
    }
    requests.push(route(
        IpNetwork::new(elsewhere, 0)?,
        None,
        stage.uplink.index,
    ));
    connection.execute(requests)?;
    let (gateway, uplink) = (stage.gateway, traffic::uplink_address(stage));
    set_up_end(&sides.pod, IN_POD, [stage.pod, gateway.into()])?;
    set_up_end(
        &sides.elsewhere,
        FAR_END,
        [elsewhere, uplink].map(IpNetwork::from),
    )
}

/// Describes a link, not yet created, that replaces the host's end of the pod's veth pair in the
/// copy of the node. It is a port of `bridge` and has the MTU of `bridge`.
fn port_of(bridge: &Link) -> Link {
    Link {
        name: port_name(),
        mac: Some(MacAddress([2, 0, 0, 0, 0, 1])),
        mtu: bridge.mtu,
        master: Some(bridge.index),
        ..Link::default()
    }
}

/// Turns off IPv6 duplicate address detection in this thread's network namespace, and returns the
/// namespace. The caller has just created the namespace, so no address in it can be a duplicate.
fn prepared() -> anyhow::Result<Netns> {
    for link in ["all", "default"] {
        Sysctl::ipv6(link, "accept_dad").ensure_if_present("0")?;
    }
    Ok(Netns::own()?)
}

/// Loads all rules into this thread's network namespace. Before, creates the missing links that
/// chains and flow tables are bound to, and the nfacct objects of rules of iptables, so that the
/// kernel accepts these chains, flow tables and rules.
fn load(rules: &Rules) -> anyhow::Result<Copied> {
    let connection = Connection::open()?;
    for name in rules.ruleset.links() {
        if connection.find_link(&name)?.is_none() {
            let link = Link {
                name,
                mtu: 1500,
                ..Link::default()
            };
            connection.add_probe_link(&link, ProbeLink::Bridge)?;
        }
    }
    let firewall = nft::Connection::open()?;
    let mut nfacct_objects = rules.ruleset.nfacct_objects();
    nfacct_objects.extend(rules.legacy.iter().flat_map(Saved::nfacct_objects));
    firewall.add_nfacct_objects(&nfacct_objects)?;
    let copied = firewall.load(&rules.ruleset)?;
    for saved in &rules.legacy {
        saved.load()?;
    }
    Ok(copied)
}

/// Configures `namespace`, which plays the pod or the other host. Sets `lo` and `name`, its end of
/// the veth pair, up, and gives `name` the address and the default gateway.
fn set_up_end(
    namespace: &Netns,
    name: &str,
    [address, gateway]: [IpNetwork; 2],
) -> anyhow::Result<()> {
    let connection = Connection::open_in(namespace)?;
    connection.execute(vec![up("lo"), up(name)])?;
    let link = connection.link(name)?.index;
    let address = Request::add_address(link, address, Dad::Skip);
    let neighbour = route(gateway, None, link);
    let default = route(IpNetwork::new(gateway.ip(), 0)?, Some(gateway.ip()), link);
    Ok(connection.execute(vec![address, neighbour, default])?)
}

fn up(link: &str) -> Request {
    Request::change_link(link, &LinkChange::Up)
}

fn route(destination: IpNetwork, gateway: Option<IpAddr>, link: u32) -> Request {
    Request::add_route(&NewRoute {
        gateway,
        ..NewRoute::on_link(destination, link)
    })
}

/// Returns a name of the form that the plugins give to host ends of veth pairs, because rules of
/// the node may match `veth*`.
fn port_name() -> String {
    format!("{HOST_LINK_PREFIX}0000000")
}

const IN_POD: &str = "eth0";
const FAR_END: &str = "far";
