//! Sandboxes with forwarded ports: a bridge with portmap behind it, and what portmap changes on the
//! host.

use serde_json::{Value, json};

use crate::{Host, Invocation, Network, Place as _, Sandbox};

/// A chain of bridge and portmap.
#[derive(Debug, Clone)]
pub struct Ports<'h> {
    bridge: Network<'h>,
    portmap: Network<'h>,
}

impl<'h> Ports<'h> {
    pub(crate) fn new(host: &'h Host) -> Self {
        let portmap = json!({"cniVersion": "1.0.0", "name": "pods", "type": "portmap"});
        Self {
            bridge: host.bridge().with("isDefaultGateway", true),
            portmap: Network::new(host, portmap),
        }
    }

    /// Sets a key of portmap.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.portmap = self.portmap.with(key, value);
        self
    }

    /// Sets a key of the bridge.
    pub fn with_bridge(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.bridge = self.bridge.with(key, value);
        self
    }

    /// Renames the chain.
    pub fn named(self, name: &str) -> Self {
        self.with("name", name).with_bridge("name", name)
    }

    /// Returns the bridge only.
    pub fn bridge(&self) -> &Network<'h> {
        &self.bridge
    }

    /// Returns portmap only, as part of the chain.
    pub fn portmap(&self) -> &Network<'h> {
        &self.portmap
    }

    /// Joins a sandbox to the bridge and returns portmap, ready for it with `mappings`:
    /// `hostPort:containerPort/protocol`, optionally with `hostIP:` before it.
    pub fn attach(&self, sandbox: &Sandbox, mappings: &[&str]) -> Network<'h> {
        let result = self.bridge.add(sandbox);
        let portmap = self.portmap.clone().with("prevResult", result);
        Self::asking(&portmap, mappings)
    }

    /// Returns `portmap` with other mappings.
    pub fn asking(portmap: &Network<'h>, mappings: &[&str]) -> Network<'h> {
        let mappings: Vec<_> = mappings.iter().map(|text| mapping(text)).collect();
        portmap
            .clone()
            .with("runtimeConfig", json!({"portMappings": mappings}))
    }

    /// Runs ADD of both, which must succeed, and returns portmap for further calls.
    #[track_caller]
    pub fn add(&self, sandbox: &Sandbox, mappings: &[&str]) -> Network<'h> {
        let portmap = self.attach(sandbox, mappings);
        assert_eq!(portmap.add(sandbox), portmap.config()["prevResult"]);
        portmap
    }

    /// Returns DEL of portmap by a runtime that has lost its state.
    pub fn forgotten(&self, sandbox: &Sandbox) -> Invocation {
        self.portmap.on("DEL", sandbox).without("CNI_NETNS")
    }
}

/// Returns the table of portmap, as `nft list table` prints it; it must exist.
pub fn rules(host: &Host) -> String {
    host.run("nft", &["list", "table", "inet", "cni-portmap"])
}

/// Returns `route_localnet` of cni0, which must exist.
pub fn route_localnet(host: &Host) -> String {
    host.sysctl("net/ipv4/conf/cni0/route_localnet").unwrap()
}

/// Converts `192.0.2.1:8080:80/udp` to the runtime's form.
pub(crate) fn mapping(text: &str) -> Value {
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let (ports, container) = ports.rsplit_once(':').unwrap();
    let (address, host) = ports.rsplit_once(':').unwrap_or(("", ports));
    let number = |text: &str| text.parse::<i64>().unwrap();
    json!({
        "hostPort": number(host),
        "containerPort": number(container),
        "protocol": protocol,
        "hostIP": address.trim_matches(['[', ']']),
    })
}
