//! A node of its own with pods, and a far machine behind a router.

use std::net::SocketAddr;

use super::meter::{Line, SERVER_PORT};
use super::side::{BRIDGE, Side, host_port};
use super::{Path, Which};
use crate::{Agent, Host, Place as _, Sandbox, at_once};

/// The namespaces of one side.
#[derive(Debug)]
pub(super) struct Node {
    side: Side,
    host: Sandbox,
    _router: Sandbox,
    far: Sandbox,
    pods: Vec<Pod>,
    _agent: Option<Agent>,
}

#[derive(Debug)]
struct Pod {
    sandbox: Sandbox,
    address: String,
    number: usize,
}

impl Node {
    /// Creates node, router and far machine.
    pub(super) fn new(host: &Host, side: &Side) -> Self {
        let place = |what: &str| quiet(host, &format!("{what}-{}", word(side)));
        let [node, router, far] = ["node", "router", "far"].map(place);
        let [router_name, far_name] = [&router, &far].map(Sandbox::name);
        node.ip(&format!(
            "link add uplink type veth peer name node netns {router_name}"
        ));
        router.ip(&format!(
            "link add far type veth peer name eth0 netns {far_name}"
        ));
        for (place, link, address) in [
            (&node, "uplink", NODE),
            (&router, "node", "192.0.2.2"),
            (&router, "far", "198.51.100.1"),
            (&far, "eth0", FAR),
        ] {
            place.ip(&format!("address add {address}/24 dev {link}"));
            place.ip(&format!("link set {link} up"));
        }
        node.ip("route add default via 192.0.2.2");
        far.ip("route add default via 198.51.100.1");
        router.ip(&format!("route add 10.1.0.0/16 via {NODE}"));
        for forwarding in [&node, &router] {
            forwarding.set_sysctl("net/ipv4/ip_forward", "1");
        }
        if side.is_bare() {
            bridge_by_hand(&node);
        }
        Self {
            side: side.clone(),
            _agent: side.agent(host, &node),
            host: node,
            _router: router,
            far,
            pods: Vec::new(),
        }
    }

    /// Attaches pods until there are `count`.
    pub(super) fn attach(&mut self, host: &Host, count: usize) {
        let numbers: Vec<_> = (self.pods.len()..count).collect();
        for some in numbers.chunks(AT_ONCE) {
            self.pods
                .extend(at_once(some, |number| self.pod(host, *number)));
        }
    }

    fn pod(&self, host: &Host, number: usize) -> Pod {
        let sandbox = quiet(host, &format!("pod-{number}-{}", word(&self.side)));
        let address = self.side.attach(&self.host, &sandbox, number);
        Pod {
            sandbox,
            address,
            number,
        }
    }

    /// Returns the ends of a path. Sets whether netfilter sees bridged frames: on a bare node it
    /// never does.
    pub(super) fn line(&self, path: Path) -> Line<'_> {
        let is_seen = path != Path::Unseen && !self.side.is_bare();
        let key = "net/bridge/bridge-nf-call-iptables";
        if self.host.sysctl(key).is_some() {
            self.host.set_sysctl(key, if is_seen { "1" } else { "0" });
        }
        let (first, last) = (self.which(Which::First), self.which(Which::Last));
        let (client, server, address, port) = match path {
            Path::Bridged | Path::Unseen => {
                (&first.sandbox, &last.sandbox, &*last.address, SERVER_PORT)
            }
            Path::Host => (&first.sandbox, &self.host, GATEWAY, SERVER_PORT),
            Path::Out(which) => (&self.which(which).sandbox, &self.far, FAR, SERVER_PORT),
            Path::In(which) => {
                let pod = self.which(which);
                let (address, port) = if self.side.is_bare() {
                    (&*pod.address, SERVER_PORT)
                } else {
                    (NODE, host_port(pod.number))
                };
                (&self.far, &pod.sandbox, address, port)
            }
        };
        let target = SocketAddr::new(address.parse().unwrap(), port);
        Line {
            client,
            server,
            target,
        }
    }

    fn which(&self, which: Which) -> &Pod {
        let pod = match which {
            Which::First => self.pods.first(),
            Which::Last => self.pods.last(),
        };
        pod.unwrap()
    }
}

/// Makes the bridge that a plugin makes elsewhere.
fn bridge_by_hand(node: &Sandbox) {
    node.ip(&format!("link add {BRIDGE} type bridge"));
    node.ip(&format!("address add {GATEWAY}/16 dev {BRIDGE}"));
    node.ip(&format!("link set {BRIDGE} up"));
}

/// Creates a namespace without IPv6, whose announcements would disturb a measurement.
fn quiet(host: &Host, name: &str) -> Sandbox {
    let sandbox = host.sandbox(name);
    for links in ["all", "default"] {
        let key = format!("net/ipv6/conf/{links}/disable_ipv6");
        sandbox.set_sysctl(&key, "1");
    }
    sandbox.ip("link set lo up");
    sandbox
}

/// Returns the side's name in the names of namespaces.
fn word(side: &Side) -> String {
    side.name.replace(|it: char| !it.is_alphanumeric(), "")
}

/// The bridge's address, which both the plugin and [`bridge_by_hand`] give it.
const GATEWAY: &str = "10.1.0.1";
const NODE: &str = "192.0.2.1";
const FAR: &str = "198.51.100.2";

/// Concurrent ADDs.
const AT_ONCE: usize = 8;
