//! cnitool, as an administrator runs it.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::ports::mapping;
use crate::{Host, Invocation, Sandbox};

/// cnitool, a directory of networks and the cache of the host.
#[derive(Debug)]
pub struct Tool<'h> {
    host: &'h Host,
}

impl<'h> Tool<'h> {
    pub(crate) fn new(host: &'h Host) -> Self {
        fs::create_dir_all(host.dir().join("net.d")).unwrap();
        Self { host }
    }

    /// Configures the network of this name: these plugins, as parts of a list.
    pub fn configure(&self, name: &str, plugins: &[Value]) {
        let mut plugins = plugins.to_vec();
        for plugin in &mut plugins {
            let plugin = plugin.as_object_mut().unwrap();
            plugin.retain(|key, _| key != "name" && key != "cniVersion");
        }
        let list = json!({"cniVersion": "1.1.0", "name": name, "plugins": plugins});
        self.install(name, &list.to_string());
    }

    /// Configures the network of this name by the text of a list.
    pub fn install(&self, name: &str, list: &str) {
        let file = self.host.dir().join("net.d").join(name);
        fs::write(file.with_extension("conflist"), list).unwrap();
    }

    /// Configures a network with all that an attachment can have in a firewall, on the bridge
    /// `cni<number>`, with `10.<number>.0.0/24` and `fd00:<number>::/64`.
    pub fn configure_all(&self, name: &str, number: u8) {
        let ranges = json!([
            [{"subnet": format!("10.{number}.0.0/24")}],
            [{"subnet": format!("fd00:{number}::/64")}],
        ]);
        let bridge = self
            .host
            .bridge()
            .with("bridge", format!("cni{number}"))
            .with("isDefaultGateway", true)
            .with("ipMasq", true)
            .with("macspoofchk", true)
            .with("ipam.ranges", ranges);
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        self.configure(name, &[bridge.config().clone(), portmap]);
    }

    /// A run with these words.
    pub fn run(&self, words: &[&str]) -> Invocation {
        let networks = self.host.dir().join("net.d");
        let tool = self.host.plugin("cnitool").env("NETCONFPATH", networks);
        words.iter().fold(tool, Invocation::argument)
    }

    /// A run for the sandbox's eth0.
    pub fn on(&self, verb: &str, network: &str, sandbox: &Sandbox) -> Invocation {
        self.run(&[verb, network, sandbox.path().to_str().unwrap()])
    }

    /// An ADD with these ports of the host, as [`crate::Ports::attach`] has them.
    #[track_caller]
    pub fn add(&self, network: &str, sandbox: &Sandbox, ports: &[&str]) -> Value {
        let ports: Vec<_> = ports.iter().map(|text| mapping(text)).collect();
        let ports = json!({"portMappings": ports}).to_string();
        self.on("add", network, sandbox).env("CAP_ARGS", ports).ok()
    }

    /// The directory of cached results.
    pub fn results(&self) -> PathBuf {
        PathBuf::from("/var/lib/cni/results")
    }
}
