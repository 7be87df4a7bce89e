//! Runs the plugins of a chain for one attachment, as a runtime does.

use std::ops::Range;
use std::path::Path;

use serde_json::{Value, json};

use crate::{Checkpoint, Host, Invocation, Network, Sandbox};

/// A network of several plugins, with the runtime's arguments for one sandbox.
#[derive(Debug, Clone)]
pub struct Chain<'h> {
    plugins: Vec<(String, Network<'h>)>,
}

/// Way of removing an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// DEL with the sandbox, the result and the arguments of ADD.
    Del,
    /// DEL of a runtime that has lost its state: no `CNI_NETNS`, `prevResult` or `runtimeConfig`.
    DelForgotten,
    /// GC with an empty list.
    Gc,
}

impl Removal {
    /// All ways.
    pub const ALL: [Self; 3] = [Self::Del, Self::DelForgotten, Self::Gc];

    /// Returns `CNI_COMMAND`.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Del | Self::DelForgotten => "DEL",
            Self::Gc => "GC",
        }
    }
}

impl<'h> Chain<'h> {
    /// Creates the network `pods` of these plugins, each with everything that it can leave in the
    /// kernel. Ports 8080 of TCP and 8053 of UDP are forwarded to 80 and 53, and both directions
    /// are limited. `devices` is `bandwidth` with limits of devices that the kubelet allocated.
    pub fn new(host: &'h Host, plugins: &[&str]) -> Self {
        let of = |plugin: &&str| ((*plugin).to_owned(), network(host, plugin));
        let chain = Self {
            plugins: plugins.iter().map(of).collect(),
        };
        chain.with_ports([8080, 8053])
    }

    /// Returns the chain for a sandbox with other ports of TCP and UDP.
    pub fn with_ports(mut self, [tcp, udp]: [u16; 2]) -> Self {
        let mappings = json!([
            {"hostPort": tcp, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": udp, "containerPort": 53, "protocol": "udp"},
        ]);
        let asked = json!({
            "portMappings": mappings,
            "bandwidth": {"ingressRate": 10_000_000, "egressRate": 10_000_000},
        });
        for (_, network) in &mut self.plugins {
            *network = network.clone().with("runtimeConfig", asked.clone());
        }
        self
    }

    /// Sets a key of one plugin's configuration; dots separate nested keys.
    pub fn with(mut self, plugin: &str, key: &str, value: &Value) -> Self {
        let place = self.position(plugin).unwrap();
        let (_, network) = &mut self.plugins[place];
        *network = network.clone().with(key, value.clone());
        self
    }

    /// Returns the chain with the reference's executables.
    pub fn by_reference(&self) -> Self {
        self.each(Network::by_reference)
    }

    /// Returns the chain with the executables in a directory.
    pub fn by(&self, directory: &Path) -> Self {
        self.each(|network| network.by(directory))
    }

    fn each(&self, change: impl Fn(&Network<'h>) -> Network<'h>) -> Self {
        let mut chain = self.clone();
        for (_, network) in &mut chain.plugins {
            *network = change(network);
        }
        chain
    }

    /// Returns the number of plugins.
    pub fn len(&self) -> usize {
        self.plugins.len()
    }

    /// Returns whether the chain has no plugin.
    pub fn is_empty(&self) -> bool {
        self.plugins.is_empty()
    }

    /// Returns the index of a plugin.
    pub fn position(&self, plugin: &str) -> Option<usize> {
        self.plugins.iter().position(|(name, _)| name == plugin)
    }

    /// Returns ADD or CHECK of the plugin at `place` for a pod of the kubelet, with the previous
    /// result; null means none.
    pub fn call(&self, place: usize, verb: &str, (a, before): (&Sandbox, &Value)) -> Invocation {
        let network = self.plugins[place].1.clone();
        let call = match before {
            Value::Null => network.on(verb, a),
            result => network.with("prevResult", result.clone()).on(verb, a),
        };
        call.args("IgnoreUnknown=1;K8S_POD_UID=uid")
    }

    /// Runs ADD of the first `count` plugins.
    ///
    /// # Errors
    /// Output of the failed plugin.
    pub fn add_first(&self, count: usize, a: &Sandbox) -> Result<Value, String> {
        self.add_some(0..count, (a, &Value::Null))
    }

    /// Runs ADD of the plugin at `place` and the later ones, after the result `before`.
    ///
    /// # Errors
    /// As [`Self::add_first`].
    pub fn add_from(&self, place: usize, on: (&Sandbox, &Value)) -> Result<Value, String> {
        self.add_some(place..self.len(), on)
    }

    /// Runs ADD of all plugins.
    ///
    /// # Errors
    /// As [`Self::add_first`].
    pub fn add(&self, a: &Sandbox) -> Result<Value, String> {
        self.add_first(self.len(), a)
    }

    fn add_some(
        &self,
        places: Range<usize>,
        (a, before): (&Sandbox, &Value),
    ) -> Result<Value, String> {
        places
            .into_iter()
            .try_fold(before.clone(), |before, place| {
                let outcome = self.call(place, "ADD", (a, &before)).run();
                if outcome.status.success() {
                    return Ok(outcome.ok());
                }
                Err(format!("ADD fails: {outcome:?}"))
            })
    }

    /// Runs CHECK of the first `count` plugins with `result`.
    ///
    /// # Errors
    /// Output of the failed plugin.
    pub fn check_first(&self, count: usize, (a, result): (&Sandbox, &Value)) -> Result<(), String> {
        succeed((0..count).map(|place| self.call(place, "CHECK", (a, result))))
    }

    /// Returns the plugins' indexes in the order of the removal.
    pub fn order(&self, removal: Removal) -> Vec<usize> {
        match removal {
            Removal::Gc => (0..self.len()).collect(),
            Removal::Del | Removal::DelForgotten => (0..self.len()).rev().collect(),
        }
    }

    /// Returns the removal by the plugin at `place`.
    pub fn removal(
        &self,
        place: usize,
        removal: Removal,
        (a, result): (&Sandbox, &Value),
    ) -> Invocation {
        let network = &self.plugins[place].1;
        match removal {
            Removal::Del => self.call(place, "DEL", (a, result)),
            Removal::DelForgotten => {
                let network = network.clone().without("runtimeConfig");
                network.on("DEL", a).without("CNI_NETNS")
            }
            Removal::Gc => network.gc(&[]),
        }
    }

    /// Runs GC of all plugins with only the eth0 of `valid` in the list.
    ///
    /// # Errors
    /// Output of the failed plugin.
    pub fn gc(&self, valid: &[&Sandbox]) -> Result<(), String> {
        let runs = self.plugins.iter().map(|(_, network)| network.gc(valid));
        succeed(runs)
    }

    /// Runs STATUS of all plugins.
    ///
    /// # Errors
    /// Output of the failed plugin.
    pub fn status(&self) -> Result<(), String> {
        let runs = self.plugins.iter().map(|(_, network)| {
            let newest = network.clone().with("cniVersion", "1.1.0");
            newest.call("STATUS")
        });
        succeed(runs)
    }

    /// Removes the attachment; stops at the first failure.
    ///
    /// # Errors
    /// Output of the failed plugin.
    pub fn remove(&self, removal: Removal, on: (&Sandbox, &Value)) -> Result<(), String> {
        let order = self.order(removal).into_iter();
        succeed(order.map(|place| self.removal(place, removal, on)))
    }
}

impl Removal {
    /// Returns whether the address of a live sandbox stays until GC after this removal, by a chain
    /// whose interface lives in the sandbox alone.
    pub fn keeps_address(self, chain: &Chain<'_>) -> bool {
        let is_first = |plugin| chain.position(plugin) == Some(0);
        self == Self::DelForgotten && (is_first("macvlan") || is_first("tap"))
    }
}

/// Runs the invocations in sequence until one fails, and returns its output.
fn succeed(runs: impl IntoIterator<Item = Invocation>) -> Result<(), String> {
    for run in runs {
        let outcome = run.run();
        if !outcome.status.success() {
            return Err(format!(
                "{} fails: {outcome:?}",
                run.variable("CNI_COMMAND")
            ));
        }
    }
    Ok(())
}

fn network<'h>(host: &'h Host, plugin: &str) -> Network<'h> {
    match plugin {
        "bridge" => {
            let bridge = host.bridge().with("isDefaultGateway", true);
            bridge.with("ipMasq", true).with("macspoofchk", true)
        }
        "macvlan" | "ipvlan" => host.card().with("type", plugin),
        "vlan" => host.card().with("type", plugin).with("vlanId", 100),
        "dummy" => host.single(plugin),
        "host-device" => host.nic(),
        "tap" => host.tap(),
        "ptp" => host.ptp().with("ipMasq", true),
        "host-local" => host.host_local(),
        "static" => host.fixed(),
        "firewall" => host
            .bandwidth()
            .with("type", plugin)
            .with("ingressPolicy", "isolated"),
        "tuning" => host.tuning(),
        "sbr" => host
            .bandwidth()
            .with("type", plugin)
            .with("addSourceHints", true),
        "vrf" => host
            .bandwidth()
            .with("type", plugin)
            .with("vrfname", "blue"),
        "devices" => {
            let checkpoint = Checkpoint::new().give("uid", "example.org/ingress-5mbit", &["i1"]);
            let checkpoint = checkpoint.give("uid", "example.org/egress-5mbit", &["e1"]);
            checkpoint.write();
            host.bandwidth().with("podResources", true)
        }
        _ => host.bandwidth().with("type", plugin),
    }
}
