//! Nodes of a cluster, joined by two bridges and a router, and the API server that they share.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::api_server::ApiServer;
use crate::http::get_by;
use crate::{Agent, Findings, Host, Invocation, Place, Sandbox, eventually};

/// A cluster whose nodes are namespaces on two links, between which the host is the router:
/// [`LAN`] and [`WAN`].
#[derive(Debug)]
pub struct Cluster<'h> {
    host: &'h Host,
    /// The API server at an address of the link.
    pub api: ApiServer,
}

/// A link: name, and the beginnings of its IPv4 and IPv6 addresses, to which the number of a node is
/// added.
pub type Link = (&'static str, &'static str, &'static str);

/// The link of nodes that reach each other without a router.
pub const LAN: Link = ("lan", "192.0.2.", "2001:db8::");

/// Another link, behind the router.
pub const WAN: Link = ("wan", "198.51.100.", "2001:db8:1::");

/// A node: a namespace, and the directory of its files.
#[derive(Debug)]
pub struct Node<'h> {
    host: &'h Host,
    number: u8,
    place: Sandbox,
    dir: PathBuf,
}

impl<'h> Cluster<'h> {
    /// Makes the link and starts the API server.
    pub fn new(host: &'h Host) -> Self {
        for (link, v4, v6) in [LAN, WAN] {
            host.ip(&format!("link add {link} type bridge"));
            host.set_sysctl(&format!("net/ipv6/conf/{link}/accept_dad"), "0");
            host.ip(&format!("address add {v4}254/24 dev {link}"));
            host.ip(&format!("address add {v6}254/64 dev {link} nodad"));
            host.ip(&format!("link set {link} up"));
        }
        host.set_sysctl("net/ipv4/ip_forward", "1");
        host.set_sysctl("net/ipv6/conf/all/forwarding", "1");
        Self {
            host,
            api: ApiServer::start("192.0.2.254:0"),
        }
    }

    /// Makes a node without an agent and without a Node object.
    pub fn machine(&self, number: u8, (link, v4, v6): Link) -> Node<'h> {
        let name = format!("node-{number}");
        let (host, place) = (self.host, self.host.sandbox(&name));
        host.ip(&format!(
            "link add {name} type veth peer name eth0 netns {name}"
        ));
        host.ip(&format!("link set {name} master {link} up"));
        place.set_sysctl("net/ipv6/conf/eth0/accept_dad", "0");
        place.ip(&format!("address add {v4}{number}/24 dev eth0"));
        place.ip(&format!("address add {v6}{number}/64 dev eth0 nodad"));
        place.ip("link set lo up");
        place.ip("link set eth0 up");
        place.ip(&format!("route add default via {v4}254"));
        place.ip(&format!("route add default via {v6}254"));
        let dir = host.dir().join(name);
        fs::create_dir(&dir).unwrap();
        Node {
            host,
            number,
            place,
            dir,
        }
    }

    /// Makes a namespace without links.
    pub fn sandbox(&self, name: &str) -> Sandbox {
        self.host.sandbox(name)
    }

    /// Makes a node with its Node object, which has both families.
    pub fn node(&self, number: u8, link: Link) -> Node<'h> {
        let node = self.machine(number, link);
        self.object(number, link);
        node
    }

    /// Makes the Node object of a node, with both families.
    pub fn object(&self, number: u8, link: Link) {
        let cidrs = [
            format!("10.244.{number}.0/24"),
            format!("fd00:10:244:{number}::/64"),
        ];
        let addresses = [format!("{}{number}", link.1), format!("{}{number}", link.2)];
        self.api.set(
            &format!("node-{number}"),
            &cidrs.each_ref().map(String::as_str),
            &addresses.each_ref().map(String::as_str),
        );
    }

    /// Makes a node on [`LAN`] and starts its agent with direct routes. Returns when the agent has
    /// written the network configuration.
    pub fn ready(&self, number: u8) -> (Node<'h>, Agent) {
        self.started(self.node(number, LAN), "direct")
    }

    /// Starts the node's agent with this mode. Returns when the agent has written the network
    /// configuration.
    pub fn started(&self, node: Node<'h>, mode: &str) -> (Node<'h>, Agent) {
        let agent = node.agent(&self.sections(&node, mode));
        // In an emulated machine, an agent may need longer than other events.
        let is_ready = (0..3).any(|_| eventually(|| node.conflist().exists()));
        assert!(is_ready, "{}", agent.log());
        (node, agent)
    }
}

impl Cluster<'_> {
    /// Returns sections of a node's agent with this mode.
    pub fn sections(&self, node: &Node<'_>, mode: &str) -> Value {
        let mut sections = node.sections(&self.api);
        sections["cluster"]["mode"] = mode.into();
        sections
    }
}

impl Node<'_> {
    /// Returns the name of its Node object.
    pub fn name(&self) -> String {
        format!("node-{}", self.number)
    }

    /// Returns the directory of its files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns its namespace.
    pub fn place(&self) -> &Sandbox {
        &self.place
    }

    /// Returns the file that its agent writes.
    pub fn conflist(&self) -> PathBuf {
        self.dir.join("net.d/10-cluster.conflist")
    }

    /// Returns sections of its agent with direct routes and a conflist of a bridge.
    pub fn sections(&self, api: &ApiServer) -> Value {
        let ipam = json!({
            "type": "host-local",
            "ranges": "$podRanges",
            "routes": "$defaultRoutes",
            "dataDir": self.dir.join("leases"),
        });
        let bridge = json!({
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "mtu": "$mtu",
            "ipMasq": true,
            "ipam": ipam,
        });
        let template = json!({"cniVersion": "1.1.0", "name": "cluster", "plugins": [bridge]});
        json!({
            "cluster": {
                "mode": "direct",
                "node": self.name(),
                "access": {"kubeconfig": api.kubeconfig(&self.dir)},
                "conflist": {"file": "10-cluster.conflist", "template": template},
                "stateFile": self.dir.join("nodes.json"),
            },
            "metrics": {"listen": format!("unix:{}", self.socket().display())},
        })
    }

    /// Starts its agent.
    pub fn agent(&self, sections: &Value) -> Agent {
        let run = Agent::run_in(self.host, &self.dir, sections);
        self.place.enter(|| Agent::spawn_in(&self.dir, &run))
    }

    /// Returns the answer of its agent to `path`; empty while the agent does not listen.
    pub fn http(&self, path: &str) -> String {
        get_by(&self.socket(), path).unwrap_or_default()
    }

    /// Waits until `/healthz` has this text.
    #[track_caller]
    pub fn health_has(&self, text: &str) {
        let is_said = eventually(|| self.http("/healthz").contains(text));
        assert!(is_said, "{text:?}: {}", self.http("/healthz"));
    }

    /// Creates a pod with the network that the agent configured.
    pub fn pod(&self, name: &str) -> Sandbox {
        let pod = self.host.sandbox(name);
        let run = self.cnitool(&["add", "cluster", pod.path().to_str().unwrap()]);
        self.place.enter(|| run.ok());
        pod
    }

    /// Returns the findings of `cnitool doctor`, which finds the agent's state at its default path.
    #[track_caller]
    pub fn doctor(&self) -> Findings {
        let run = self.cnitool(&["doctor", "--json"]);
        Findings::of(&self.place.enter(|| run.run()))
    }

    /// Returns its routes of the agent, as `DESTINATION via GATEWAY`, without metrics.
    pub fn cluster_routes(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for family in ["-4", "-6"] {
            let routes = self
                .place
                .ip_json(&format!("{family} route show proto 201"));
            lines.extend(routes.iter().map(|it| {
                let text = |key: &str| it[key].as_str().unwrap_or_default().to_owned();
                // A link-local gateway depends on the node's MAC.
                let gateway = text("gateway");
                let is_local = gateway.starts_with("fe80::");
                let gateway = if is_local { "fe80::" } else { &gateway };
                format!("{} via {gateway}", text("dst"))
            }));
        }
        lines.sort();
        lines
    }

    /// Waits until the agent's routes are these.
    #[track_caller]
    pub fn expect_routes(&self, routes: &[&str]) {
        let is_so = eventually(|| self.cluster_routes() == routes);
        assert!(is_so, "{:?}: {}", self.cluster_routes(), self.log());
    }

    /// Returns what its agents wrote to standard error.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("agent.log")).unwrap_or_default()
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("metrics.sock")
    }

    fn cnitool(&self, words: &[&str]) -> Invocation {
        let tool = self.host.plugin("cnitool");
        let tool = tool.env("NETCONFPATH", self.dir.join("net.d"));
        words.iter().fold(tool, Invocation::argument)
    }
}

/// Makes a pod on each of the nodes.
pub fn pods(nodes: &[(Node<'_>, Agent)]) -> Vec<Sandbox> {
    let named = nodes.iter().zip(["a", "b", "c"]);
    named.map(|((node, _), name)| node.pod(name)).collect()
}

/// Returns a VXLAN packet of the identifier 201 with a frame to `mac`, which has a datagram.
pub fn tunnelled(source: Ipv4Addr, target: SocketAddrV4, mac: &str) -> Vec<u8> {
    let mut packet = vec![8, 0, 0, 0, 0, 0, 201, 0];
    packet.extend(mac.split(':').map(|it| u8::from_str_radix(it, 16).unwrap()));
    packet.extend([2, 0, 0, 0, 0, 1, 8, 0]);
    let mut ip = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0];
    ip.extend(source.octets());
    ip.extend(target.ip().octets());
    let sum: u32 = ip
        .chunks(2)
        .map(|it| u32::from(it[0]) << 8 | u32::from(it[1]))
        .sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(ip);
    packet.extend(9_u16.to_be_bytes());
    packet.extend(target.port().to_be_bytes());
    packet.extend([0, 12, 0, 0]);
    packet.extend(b"evil");
    packet
}
