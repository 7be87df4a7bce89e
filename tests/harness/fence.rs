//! Sandboxes behind a host's firewall: a bridge with portmap and firewall behind it.

use serde_json::Value;

use crate::place::Place;
use crate::traffic::tcp;
use crate::{Host, Network, Ports, Sandbox, at_once};

/// A chain of bridge, portmap and firewall, and another host that has routes to its sandboxes.
#[derive(Debug)]
pub struct Fence<'h> {
    /// The other host: 192.0.2.2 and `2001:db8::2`.
    pub outside: Sandbox,
    ports: Ports<'h>,
    firewall: Network<'h>,
}

impl<'h> Fence<'h> {
    pub(crate) fn new(host: &'h Host) -> Self {
        let outside = host.outside_of_both_families();
        outside.ip("route add 10.1.0.0/16 via 192.0.2.1");
        outside.ip("route add fd00:1::/32 via 2001:db8::1");
        Self {
            outside,
            ports: host.ports(),
            firewall: host.bandwidth().with("type", "firewall"),
        }
    }

    /// Sets a key of firewall.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.firewall = self.firewall.with(key, value);
        self
    }

    /// Returns firewall only, as part of the chain.
    pub fn firewall(&self) -> &Network<'h> {
        &self.firewall
    }

    /// Joins a sandbox to the bridge with these ports and returns firewall, ready for it.
    pub fn join(&self, pod: &Sandbox, ports: &[&str]) -> Network<'h> {
        let portmap = self.ports.add(pod, ports);
        let result = portmap.config()["prevResult"].clone();
        self.firewall.clone().with("prevResult", result)
    }

    /// Runs ADD of all three, which must succeed, and returns firewall for further calls.
    #[track_caller]
    pub fn add(&self, pod: &Sandbox, ports: &[&str]) -> Network<'h> {
        let firewall = self.join(pod, ports);
        assert_eq!(firewall.add(pod), firewall.config()["prevResult"]);
        firewall
    }

    /// Returns whether a sandbox opens connections to the other host, in IPv4 and IPv6.
    pub fn opens(&self, pod: &Sandbox) -> [bool; 2] {
        let addresses = ["192.0.2.2", "2001:db8::2"];
        let opened = at_once(&addresses, |it| tcp(pod, &self.outside, it).is_some());
        [opened[0], opened[1]]
    }

    /// Returns whether the other host opens a connection to an address of a sandbox.
    pub fn is_opened(&self, pod: &Sandbox, address: &str) -> bool {
        tcp(&self.outside, pod, address).is_some()
    }
}

/// Chains that drop all forwarded packets, as programs create them: lines for a shell.
pub const CLOSED: [(&str, &str); 2] = [
    (
        "Docker",
        "for p in iptables-nft ip6tables-nft; do $p -P FORWARD DROP; $p -N DOCKER-USER;
         $p -A FORWARD -j DOCKER-USER;
         $p -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; done",
    ),
    (
        "ufw",
        "for p in iptables-nft ip6tables-nft; do $p -N ufw-before-forward; $p -N ufw-reject-forward;
         $p -A FORWARD -j ufw-before-forward; $p -A FORWARD -j ufw-reject-forward;
         $p -A ufw-reject-forward -j REJECT; done",
    ),
];
