//! An interface of a pod with several, for the plugins that chain behind it.

use serde_json::{Value, json};

use crate::{Host, Network, Outcome, Sandbox};

/// An interface `net<number>` of a pod on the network `n<number>`, a bridge `cni<number>` as default
/// gateway of `10.<number>.0.0/24` and `fd00:<number>::/64`.
pub struct Interface<'h> {
    host: &'h Host,
    /// The network.
    pub bridge: Network<'h>,
    /// The number.
    pub number: u8,
    /// Its name in the pod.
    pub name: String,
    /// The bridge's result.
    pub result: Value,
}

impl<'h> Interface<'h> {
    /// Gives a pod the interface.
    pub fn new(host: &'h Host, a: &Sandbox, number: u8) -> Self {
        let ranges = [format!("10.{number}.0.0/24"), format!("fd00:{number}::/64")];
        let ranges = json!(ranges.map(|subnet| json!([{"subnet": subnet}])));
        let bridge = host.bridge().with("ipam.ranges", ranges);
        let bridge = bridge.with("isDefaultGateway", true);
        let bridge = bridge.with("name", format!("n{number}"));
        let bridge = bridge.with("bridge", format!("cni{number}"));
        let name = format!("net{number}");
        let result = bridge.on("ADD", a).ifname(&name).ok();
        Self {
            host,
            bridge,
            number,
            name,
            result,
        }
    }

    /// Returns the network of a plugin that chains behind the bridge.
    pub fn chained(&self, plugin: &str) -> Network<'h> {
        let network = self.host.bandwidth().with("type", plugin);
        let network = network.with("name", format!("n{}", self.number));
        network.with("prevResult", self.result.clone())
    }

    /// Runs a verb of a chained plugin for this interface.
    pub fn run(&self, verb: &str, network: &Network<'_>, a: &Sandbox) -> Outcome {
        network.on(verb, a).ifname(&self.name).run()
    }

    /// Returns the address of IPv4 or of IPv6, without its prefix length.
    pub fn source(&self, place: usize) -> String {
        let address = self.result["ips"][place]["address"].as_str().unwrap();
        address.split('/').next().unwrap().to_owned()
    }
}
