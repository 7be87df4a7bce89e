//! The sides of a comparison: how the pods of a node are attached.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{Agent, Host, Invocation, Place as _, Sandbox};

/// What attaches the pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side {
    /// Name in the table.
    pub name: String,
    plugins: Plugins,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Plugins {
    /// None: a bridge and veth pairs, without netfilter.
    None,
    /// Those of a directory, with the name of a backend if they know several.
    Of {
        directory: PathBuf,
        backend: Option<&'static str>,
        guard: Guard,
    },
}

/// What keeps neighbours off 127.0.0.0/8 beside rules, with plugins of this suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// `IPsec` policies.
    Policies,
    /// Nothing, as the operator wants.
    Rules,
    /// A running agent.
    Agent,
}

impl Side {
    /// Links without any plugin, which are the limit of all others. The other machine reaches a pod
    /// by its own address, without a port of the host.
    pub fn bare() -> Self {
        Self {
            name: "bare".into(),
            plugins: Plugins::None,
        }
    }

    /// The plugins under test.
    pub fn under_test(name: &str) -> Self {
        let plugin = crate::host::under_test("bridge");
        Self::of(name, plugin.parent().unwrap())
    }

    /// The plugins of a directory.
    pub fn of(name: &str, directory: &Path) -> Self {
        Self::guarded(name, directory, Guard::Policies)
    }

    /// The plugins of a directory with this guard.
    pub fn guarded(name: &str, directory: &Path, guard: Guard) -> Self {
        Self {
            name: name.into(),
            plugins: Plugins::Of {
                directory: directory.into(),
                backend: None,
                guard,
            },
        }
    }

    /// The plugins of a directory with a backend: `iptables` or `nftables`.
    pub fn with_backend(name: &str, directory: &Path, backend: &'static str) -> Self {
        Self {
            name: name.into(),
            plugins: Plugins::Of {
                directory: directory.into(),
                backend: Some(backend),
                guard: Guard::Policies,
            },
        }
    }

    /// Returns whether it has no plugin.
    pub(super) fn is_bare(&self) -> bool {
        self.plugins == Plugins::None
    }

    /// Attaches a pod with the given number to a node and returns its address.
    pub(super) fn attach(&self, node: &Sandbox, pod: &Sandbox, number: usize) -> String {
        let Plugins::Of { directory, .. } = &self.plugins else {
            return by_hand(node, pod, number);
        };
        let mut result = Value::Null;
        for mut plugin in self.chain(number) {
            plugin["prevResult"] = result;
            let name = plugin["type"].as_str().unwrap();
            let call = Invocation::of(&directory.join(name), directory);
            let call = call.verb("ADD").sandbox(pod);
            result = node.enter(|| call.config(&plugin).ok());
        }
        let address = result["ips"][0]["address"].as_str().unwrap();
        address.split('/').next().unwrap().to_owned()
    }

    /// Starts the agent on the node, if it guards there.
    pub(super) fn agent(&self, host: &Host, node: &Sandbox) -> Option<Agent> {
        let Plugins::Of {
            directory,
            guard: Guard::Agent,
            ..
        } = &self.plugins
        else {
            return None;
        };
        let agent = Invocation::of(&directory.join("cni-agent"), directory);
        let file = host.dir().join("agent.json");
        std::fs::write(&file, r#"{"repair": {}}"#).unwrap();
        let run = agent.argument("--config").argument(file);
        Some(node.enter(|| Agent::spawn(host, &run)))
    }

    /// Returns a bridge that masquerades, and a port of the host for each protocol.
    fn chain(&self, number: usize) -> [Value; 2] {
        let name = format!(
            "path-{}",
            self.name.replace(|it: char| !it.is_alphanumeric(), "-")
        );
        let mut bridge = json!({
            "cniVersion": "1.0.0", "name": name, "type": "bridge", "bridge": BRIDGE,
            "isDefaultGateway": true, "ipMasq": true,
            "ipam": {
                "type": "host-local", "dataDir": "/run/test/leases",
                "ranges": [[{"subnet": "10.1.0.0/16"}]],
            },
        });
        let ports = ["tcp", "udp"].map(|protocol| {
            json!({
                "hostPort": host_port(number),
                "containerPort": super::meter::SERVER_PORT,
                "protocol": protocol,
            })
        });
        let mut portmap = json!({
            "cniVersion": "1.0.0", "name": name, "type": "portmap",
            "runtimeConfig": {"portMappings": ports},
        });
        if let Plugins::Of { backend, guard, .. } = self.plugins {
            if let Some(backend) = backend {
                bridge["ipMasqBackend"] = backend.into();
                portmap["backend"] = backend.into();
            }
            if guard == Guard::Rules {
                portmap["localhostGuard"] = "rules".into();
            }
        }
        [bridge, portmap]
    }
}

/// Returns the port of the host for a pod.
pub(super) fn host_port(number: usize) -> u16 {
    10_000 + u16::try_from(number).unwrap()
}

/// Attaches a pod to the bridge without a plugin.
fn by_hand(node: &Sandbox, pod: &Sandbox, number: usize) -> String {
    let address = format!("10.1.{}.{}", (number + 2) / 256, (number + 2) % 256);
    let name = pod.name();
    node.ip(&format!(
        "link add veth{number} master {BRIDGE} type veth peer name eth0 netns {name}"
    ));
    node.ip(&format!("link set veth{number} up"));
    pod.ip(&format!("address add {address}/16 dev eth0"));
    pod.ip("link set eth0 up");
    pod.ip("route add default via 10.1.0.1");
    address
}

pub(super) const BRIDGE: &str = "cni0";
