//! A network configuration for one plugin, and its verbs.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{Host, Invocation, Sandbox};

/// A configuration with its plugin.
#[derive(Debug, Clone)]
pub struct Network<'h> {
    host: &'h Host,
    config: Value,
    executables: Executables,
}

/// Directory of the plugins, delegates included.
#[derive(Debug, Clone)]
enum Executables {
    UnderTest,
    Reference,
    In(PathBuf),
}

impl<'h> Network<'h> {
    pub(crate) fn new(host: &'h Host, config: Value) -> Self {
        Self {
            host,
            config,
            executables: Executables::UnderTest,
        }
    }

    /// Returns the network with the reference's executables, delegates included.
    pub fn by_reference(&self) -> Self {
        Self {
            executables: Executables::Reference,
            ..self.clone()
        }
    }

    /// Returns the network with the executables in a directory, delegates included.
    pub fn by(&self, directory: &Path) -> Self {
        Self {
            executables: Executables::In(directory.to_owned()),
            ..self.clone()
        }
    }

    /// Gives all containers of the network the same address of each family: `10.1.0.9` and
    /// `fd00:1::9`.
    pub fn with_one_address(self) -> Self {
        let addresses = json!([
            {"address": "10.1.0.9/24", "gateway": "10.1.0.1"},
            {"address": "fd00:1::9/64", "gateway": "fd00:1::1"},
        ]);
        let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
        let ipam = json!({"type": "static", "addresses": addresses, "routes": routes});
        self.with("ipam", ipam)
    }

    /// Sets a key; dots separate nested keys: `ipam.routes`.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        let mut place = &mut self.config;
        for part in key.split('.') {
            place = &mut place[part];
        }
        *place = value.into();
        self
    }

    /// Removes a top-level key.
    pub fn without(mut self, key: &str) -> Self {
        self.config.as_object_mut().unwrap().remove(key);
        self
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// Returns a run of the plugin with this configuration and no other argument.
    pub fn call(&self, verb: &str) -> Invocation {
        let name = self.config["type"].as_str().unwrap();
        let invocation = match &self.executables {
            Executables::UnderTest => self.host.plugin(name),
            Executables::Reference => self.host.reference(name).env("CNI_PATH", crate::REFERENCE),
            Executables::In(directory) => {
                let plugin = self.host.program(&directory.join(name));
                plugin.env("CNI_PATH", directory)
            }
        };
        invocation.verb(verb).config(&self.config)
    }

    /// Returns a run of the plugin for a sandbox's eth0.
    pub fn on(&self, verb: &str, sandbox: &Sandbox) -> Invocation {
        self.call(verb).sandbox(sandbox)
    }

    /// Returns a run of the plugin for eth0 of a container whose sandbox does not exist. IPAM
    /// plugins never open it.
    pub fn call_for(&self, verb: &str, container: &str) -> Invocation {
        let call = self.call(verb).container(container).ifname("eth0");
        call.netns("/run/netns/never-was")
    }

    /// Runs ADD, which must succeed.
    #[track_caller]
    pub fn add(&self, sandbox: &Sandbox) -> Value {
        self.on("ADD", sandbox).ok()
    }

    /// Runs DEL, which must succeed and print nothing.
    #[track_caller]
    pub fn del(&self, sandbox: &Sandbox) {
        assert_eq!(self.on("DEL", sandbox).ok(), Value::Null);
    }

    /// Returns a run of CHECK with the result of an ADD.
    pub fn check(&self, sandbox: &Sandbox, result: &Value) -> Invocation {
        let with_result = self.clone().with("prevResult", result.clone());
        with_result.on("CHECK", sandbox)
    }

    /// Returns a run of GC with only the eth0 of `valid` in the list.
    pub fn gc(&self, valid: &[&Sandbox]) -> Invocation {
        let entry = |sandbox: &&Sandbox| json!({"containerID": sandbox.name(), "ifname": "eth0"});
        let list: Vec<_> = valid.iter().map(entry).collect();
        let newest = self.clone().with("cniVersion", "1.1.0");
        newest
            .with_key("cni.dev/valid-attachments", list.into())
            .call("GC")
    }

    /// Sets a top-level key whose name may contain dots.
    pub fn with_key(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }
}
