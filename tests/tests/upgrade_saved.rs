//! What a former build wrote (`fixtures/former-release.json`): its files and its tables, for a
//! sandbox that still has its network. So the test needs no executables of that build.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tests::traffic::{tcp, tcp_by_port};
use tests::{Host, Place as _, Sandbox, Tool};

const OWNER: &str = "cni:pods/cnitool-1b1a0cc9688969005e19/eth0";
const LINK: &str = "veth43696229abb";

/// A host on which the former build attached the sandbox `old`.
struct Node<'h> {
    host: &'h Host,
    tool: Tool<'h>,
    outside: Sandbox,
    old: Sandbox,
}

impl<'h> Node<'h> {
    fn new(host: &'h Host) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/former-release.json");
        let saved: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let old = host.sandbox("old");
        connect(host, &old);
        for (file, content) in saved["files"].as_object().unwrap() {
            let file = Path::new(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content.as_str().unwrap()).unwrap();
        }
        // The fixture's boot: after another one, host-local would release the lease.
        let index = host.lease_dir().join(".host-local/pods/state");
        let state: Value = serde_json::from_slice(&fs::read(index).unwrap()).unwrap();
        host.reboot(state["boot"].as_str().unwrap());
        let lines = saved["ruleset"].as_array().unwrap().iter();
        let rules: Vec<_> = lines.map(|it| it.as_str().unwrap()).collect();
        let file = host.dir().join("rules");
        fs::write(&file, rules.join("\n")).unwrap();
        host.run("nft", &["-f", file.to_str().unwrap()]);
        let tool = host.tool();
        tool.install("pods", saved["conflist"].as_str().unwrap());
        let outside = host.outside();
        Self {
            host,
            tool,
            outside,
            old,
        }
    }

    fn serves(&self, port: u16, pod: &Sandbox) -> bool {
        let target = format!("192.0.2.1:{port}");
        tcp_by_port(&self.outside, &target, (pod, 80)).is_some()
            && tcp(pod, &self.outside, "192.0.2.2") == Some("192.0.2.1".parse().unwrap())
    }

    fn add(&self, name: &str, port: u16) -> Sandbox {
        let pod = self.host.sandbox(name);
        self.tool.add("pods", &pod, &[&format!("{port}:80")]);
        pod
    }

    /// Checks that no file, element or lease of `old` is left.
    #[track_caller]
    fn has_nothing_of_old(&self) {
        let rules = self.host.run("nft", &["list", "ruleset"]);
        assert!(!rules.contains(OWNER), "{rules}");
        let (_, container) = OWNER.split_once('/').unwrap();
        let (container, _) = container.split_once('/').unwrap();
        for directory in ["/run/cni", "/run/test/leases", "/var/lib/cni"] {
            let search = format!("grep -rl {container} {directory} || true");
            let found = self.host.run("sh", &["-c", &search]);
            assert_eq!(found, "", "{directory}");
        }
    }
}

/// Connects the sandbox as the former build did. The indexes of the bridge and of the link are those
/// in the fixture: 2 and 3.
fn connect(host: &Host, old: &Sandbox) {
    host.ip("link add cni0 address 5a:ea:77:78:86:48 type bridge");
    host.ip(&format!(
        "link add {LINK} type veth peer name eth0 address 0a:58:0a:01:00:02 netns old"
    ));
    host.ip(&format!("link set {LINK} alias {OWNER} master cni0 up"));
    host.ip("address add 10.1.0.1/24 dev cni0");
    host.ip("link set cni0 up");
    old.ip("link set eth0 mtu 1400 up");
    old.ip("address add 10.1.0.2/24 dev eth0");
    old.ip("route add default via 10.1.0.1");
    for key in ["net/ipv4/ip_forward", "net/ipv4/conf/cni0/route_localnet"] {
        host.set_sysctl(key, "1");
    }
    assert_eq!(host.link(LINK)["ifindex"], json!(3));
}

#[test]
fn saved_attachment_serves_beside_new_ones_until_its_del() {
    let host = Host::new();
    let node = Node::new(&host);
    assert!(node.serves(8080, &node.old));
    let a = node.add("a", 8081);
    assert_eq!(a.addresses("eth0")[0], "10.1.0.3/24");
    assert!(node.serves(8080, &node.old) && node.serves(8081, &a));
    let late = host.sandbox("late");
    let ports =
        json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
    let add = node.tool.on("add", "pods", &late);
    let refused = add.env("CAP_ARGS", ports.to_string()).run();
    assert!(refused.stderr.contains(OWNER), "{refused:?}");
    node.tool.on("del", "pods", &late).ok();
    assert_eq!(node.tool.ps().len(), 2);
    host.run("nft", &["flush", "ruleset"]);
    node.tool.run(&["reload"]).ok();
    assert!(node.serves(8080, &node.old) && node.serves(8081, &a));
    node.tool.on("del", "pods", &node.old).ok();
    node.has_nothing_of_old();
    assert!(!host.has_link(LINK) && node.serves(8081, &a));
}

#[test]
fn saved_attachment_is_collected_without_its_sandbox() {
    let host = Host::new();
    let node = Node::new(&host);
    let a = node.add("a", 8081);
    host.end(&node.old);
    let listed = node.tool.ps();
    let is_old = |it: &&Value| OWNER.contains(it["container"].as_str().unwrap());
    let a_container = &listed.iter().find(|it| !is_old(it)).unwrap()["container"];
    let valid = format!("{}/eth0", a_container.as_str().unwrap());
    node.tool.run(&["gc", "pods", "--valid", &valid]).ok();
    node.has_nothing_of_old();
    assert!(node.serves(8081, &a));
}
