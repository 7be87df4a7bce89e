//! conf-examples/kubenet.conflist.template gives what kubenet gave.

use std::fs;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tests::traffic::tcp;
use tests::{Host, Invocation, Place, Sandbox};

/// The template as containerd fills it in with the node's pod CIDRs, and with the default routes
/// of their families; in a directory of configurations.
fn configured(host: &Host) -> PathBuf {
    let example = "../conf-examples/kubenet.conflist.template";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(example);
    let mut text = fs::read_to_string(path).unwrap();
    for (list, values) in [
        ("PodCIDRRanges", ["10.244.1.0/24", "fd00:244:1::/64"]),
        ("Routes", ["0.0.0.0/0", "::/0"]),
    ] {
        text = fill_in(&text, list, values);
    }
    assert!(!text.contains("{{"), "{text}");
    let directory = host.dir().join("net.d");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("10-kubenet.conflist"), text).unwrap();
    directory
}

/// Repeats what stands between `{{range $i, $name := .LIST}}` and the last `{{end}}` of its line
/// for each value, with a comma in between.
fn fill_in(text: &str, list: &str, values: [&str; 2]) -> String {
    let lines = text.lines().map(|line| {
        let Some((head, rest)) = line.split_once("{{range $i, $") else {
            return line.to_owned();
        };
        let (name, rest) = rest.split_once(" := .").unwrap();
        let Some(rest) = rest.strip_prefix(&format!("{list}}}}}{{{{if $i}}}}, {{{{end}}}}")) else {
            return line.to_owned();
        };
        let (item, tail) = rest.rsplit_once("{{end}}").unwrap();
        let items = values.map(|value| item.replace(&format!("{{{{${name}}}}}"), value));
        format!("{head}{}{tail}", items.join(", "))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A pod with a port and a limit.
struct Pod<'a> {
    host: &'a Host,
    sandbox: &'a Sandbox,
    directory: &'a Path,
}

impl Pod<'_> {
    fn run(&self, verb: &str) -> Value {
        let asked = json!({
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
            "bandwidth": {"ingressRate": 10_000_000, "egressRate": 10_000_000},
        });
        let tool = self
            .host
            .plugin("cnitool")
            .env("NETCONFPATH", self.directory)
            .env("CAP_ARGS", asked.to_string());
        let words = [verb, "kubenet", self.sandbox.path().to_str().unwrap()];
        words.iter().fold(tool, Invocation::argument).ok()
    }
}

fn connects(client: &impl Place, address: &str) -> bool {
    let address = address.parse().unwrap();
    let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(2));
    client.enter(connect).is_ok()
}

#[test]
fn a_pod_has_network_masquerading_ports_and_limits() {
    let host = Host::new();
    let outside = host.outside();
    outside.ip("address add 10.9.9.9/32 dev lo");
    outside.ip("route add 10.244.1.0/24 via 192.0.2.1");
    host.ip("route add 10.9.9.9/32 via 192.0.2.2");
    let (directory, a) = (configured(&host), host.sandbox("a"));
    let pod = Pod {
        host: &host,
        sandbox: &a,
        directory: &directory,
    };
    pod.run("add");
    pod.run("del");
    let before = host.snapshot();
    let result = pod.run("add");
    let address = |of: usize| result["ips"][of]["address"].as_str().unwrap();
    assert_eq!(address(0), "10.244.1.3/24");
    assert_eq!(address(1), "fd00:244:1::3/64");
    let seen = |target: &str| tcp(&a, &outside, target);
    let [of_host, own]: [IpAddr; 2] = [[192, 0, 2, 1].into(), [10, 244, 1, 3].into()];
    assert_eq!(seen("192.0.2.2"), Some(of_host));
    assert_eq!(seen("10.9.9.9"), Some(own), "within the cluster");
    let listening = a.enter(|| TcpListener::bind("0.0.0.0:80").unwrap());
    assert!(connects(&outside, "192.0.2.1:8080"));
    assert!(connects(&a, "192.0.2.1:8080"), "hairpin");
    drop(listening);
    let disciplines = host.run("tc", &["qdisc", "show"]);
    assert_eq!(
        disciplines.matches("rate 10Mbit").count(),
        2,
        "{disciplines}"
    );
    pod.run("check");
    pod.run("del");
    host.snapshot().assert_same_as(&before);
}
