//! The files of conf-examples/, and sandboxes attached with them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::traffic::{Flood, flood, tcp, tcp_by_port};
use crate::{Host, Invocation, Place as _, Sandbox, Snapshot, Tool};

/// An example, installed in cnitool's directory of networks.
#[derive(Debug)]
pub struct Example<'h> {
    host: &'h Host,
    tool: Tool<'h>,
    network: Value,
}

impl<'h> Example<'h> {
    /// Returns the directory of the examples.
    pub fn directory() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf-examples")
    }

    /// Returns the network of each list and template, with its file name. Templates are filled in
    /// without pod CIDRs.
    pub fn networks() -> Vec<(String, Value)> {
        let entries = fs::read_dir(Self::directory()).unwrap();
        let names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
        let names = names.filter(|it| it.contains(".conflist") && !it.contains("schema"));
        let read = |name: String| {
            let text = filled(&name, &[]);
            let network = serde_json::from_str(&text);
            let network = network.unwrap_or_else(|error| panic!("{name}: {error}"));
            (name, network)
        };
        names.map(read).collect()
    }

    /// Installs a list without changes.
    pub fn list(host: &'h Host, file: &str) -> Self {
        Self::of_text(host, &read(file))
    }

    /// Installs a template filled in like containerd does, with a node's pod CIDRs and default
    /// routes of both families.
    pub fn template(host: &'h Host, file: &str, pod_cidrs: &[&str]) -> Self {
        Self::of_text(host, &filled(file, pod_cidrs))
    }

    fn of_text(host: &'h Host, text: &str) -> Self {
        let network: Value = serde_json::from_str(text).unwrap();
        let tool = host.tool();
        tool.install(network["name"].as_str().unwrap(), text);
        Self {
            host,
            tool,
            network,
        }
    }

    /// Returns a run of cnitool for the whole network.
    pub fn run(&self, verb: &str) -> Invocation {
        self.tool.run(&[verb, self.name()])
    }

    /// Returns a run of cnitool for a sandbox.
    pub fn on(&self, verb: &str, sandbox: &Sandbox) -> Invocation {
        self.tool.on(verb, self.name(), sandbox)
    }

    /// Attaches two sandboxes. If the example declares the capabilities, host port 8080 is
    /// forwarded to port 80 of the first one, and both are limited to 10 Mbit/s.
    pub fn pods(self) -> Pods<'h> {
        let outside = self.host.outside_of_both_families();
        let [warm, a, b] = ["warm", "a", "b"].map(|name| self.host.sandbox(name));
        let mapping = json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"});
        let add = |sandbox: &Sandbox, mappings: Value| {
            let limit = json!({"ingressRate": 10_000_000, "egressRate": 10_000_000});
            let asked = json!({"portMappings": mappings, "bandwidth": limit});
            let add = self.on("add", sandbox).env("CAP_ARGS", asked.to_string());
            add.ok()
        };
        // Creates the objects that stay after the host's first attachment.
        add(&warm, json!([mapping]));
        self.on("del", &warm).ok();
        let before = self.host.snapshot();
        let results = [add(&a, json!([mapping])), add(&b, json!([]))];
        Pods {
            example: self,
            outside,
            a,
            b,
            results,
            before,
        }
    }

    fn name(&self) -> &str {
        self.network["name"].as_str().unwrap()
    }

    /// Returns whether the version has CHECK, which 0.4.0 introduced.
    fn can_be_checked(&self) -> bool {
        self.network["cniVersion"].as_str().unwrap() >= "0.4.0"
    }
}

/// Two sandboxes on a host, and another host.
#[derive(Debug)]
pub struct Pods<'h> {
    example: Example<'h>,
    /// Another host, from [`Host::outside_of_both_families`].
    pub outside: Sandbox,
    /// The sandbox with a host port.
    pub a: Sandbox,
    /// The other sandbox.
    pub b: Sandbox,
    /// Results of their ADDs.
    pub results: [Value; 2],
    before: Snapshot,
}

impl Pods<'_> {
    /// Checks that the first sandbox reaches all addresses of the second one and its own gateways.
    /// Each sandbox must have `count` addresses.
    pub fn reach_each_other(&self, count: usize) -> &Self {
        let [own, other] = self.results.each_ref().map(addresses);
        assert_eq!([own.len(), other.len()], [count, count]);
        let ips = self.results[0]["ips"].as_array().unwrap().iter();
        let gateways: Vec<_> = ips.map(|ip| ip["gateway"].as_str().unwrap()).collect();
        for address in other.into_iter().chain(gateways) {
            assert!(self.a.pings(address), "{address}");
        }
        self
    }

    /// Checks that the other host, and the host itself through 127.0.0.1, reach the first sandbox
    /// through port 8080.
    pub fn forward_ports(&self) -> &Self {
        let server = (&self.a, 80);
        assert!(tcp_by_port(&self.outside, "192.0.2.1:8080", server).is_some());
        let host = self.example.host;
        assert!(tcp_by_port(host, "127.0.0.1:8080", server).is_some());
        self
    }

    /// Checks that the first sandbox reaches itself through a host port.
    pub fn reach_themselves(&self) -> &Self {
        assert!(tcp_by_port(&self.a, "192.0.2.1:8080", (&self.a, 80)).is_some());
        self
    }

    /// Checks that the other host, which has no route to the sandboxes, sees the host's address in
    /// each of their families.
    pub fn leave_as_the_host(&self) -> &Self {
        for address in addresses(&self.results[0]) {
            let [of_host, target] = if address.contains(':') {
                ["2001:db8::1", "2001:db8::2"]
            } else {
                ["192.0.2.1", "192.0.2.2"]
            };
            let seen = tcp(&self.a, &self.outside, target);
            assert_eq!(seen, Some(of_host.parse().unwrap()), "{address}");
        }
        self
    }

    /// Checks that a flood from the other host arrives at the first sandbox with at most this rate,
    /// in bit/s. The lower bound is loose, since it depends on other load.
    pub fn are_limited(&self, rate: f64) -> &Self {
        let address = addresses(&self.results[0])[0].to_owned();
        let route = format!("route replace {address}/32 via 192.0.2.1");
        self.outside.ip(&route);
        let from = (&self.outside, "192.0.2.2");
        let arrived = flood(Flood::Udp, from, (&self.a, &address, "eth0"), 1)[0];
        assert!(arrived > rate / 100.0 && arrived < rate * 1.2, "{arrived}");
        self
    }

    /// Checks that CHECK succeeds and DEL leaves nothing.
    pub fn detach(&self) {
        for sandbox in [&self.a, &self.b] {
            if self.example.can_be_checked() {
                self.example.on("check", sandbox).ok();
            }
        }
        for sandbox in [&self.a, &self.b] {
            self.example.on("del", sandbox).ok();
            assert_eq!(sandbox.links(), ["lo"]);
        }
        let host = self.example.host;
        host.snapshot().assert_same_as(&self.before);
    }

    /// Returns the example.
    pub fn example(&self) -> &Example<'_> {
        &self.example
    }
}

/// Returns the addresses of a result without prefix lengths; empty if it has none.
fn addresses(result: &Value) -> Vec<&str> {
    let ips = result["ips"].as_array().into_iter().flatten();
    ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap())
        .collect()
}

fn read(file: &str) -> String {
    let path = Example::directory().join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the text of a list, or of a template with these pod CIDRs.
fn filled(file: &str, pod_cidrs: &[&str]) -> String {
    let first = pod_cidrs.first().copied().unwrap_or_default();
    let text = read(file).replace("{{.PodCIDR}}", first);
    let text = fill_in(&text, "PodCIDRRanges", pod_cidrs);
    let text = fill_in(&text, "Routes", &["0.0.0.0/0", "::/0"]);
    assert!(!text.contains("{{"), "{text}");
    text
}

/// Repeats the text between `{{range $i, $name := .LIST}}` and the line's last `{{end}}` for each
/// value, separated by commas.
fn fill_in(text: &str, list: &str, values: &[&str]) -> String {
    let lines = text.lines().map(|line| {
        let Some((head, rest)) = line.split_once("{{range $i, $") else {
            return line.to_owned();
        };
        let (name, rest) = rest.split_once(" := .").unwrap();
        let Some(rest) = rest.strip_prefix(&format!("{list}}}}}{{{{if $i}}}}, {{{{end}}}}")) else {
            return line.to_owned();
        };
        let (item, tail) = rest.rsplit_once("{{end}}").unwrap();
        let items = values.iter();
        let items: Vec<_> = items
            .map(|value| item.replace(&format!("{{{{${name}}}}}"), value))
            .collect();
        format!("{head}{}{tail}", items.join(", "))
    });
    lines.collect::<Vec<_>>().join("\n")
}
