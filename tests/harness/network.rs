//! A network configuration under one plugin, and the verbs on it.

use serde_json::{Value, json};

use crate::{Host, Invocation, Sandbox};

/// A configuration with a plugin to run it.
#[derive(Debug, Clone)]
pub struct Network<'h> {
    host: &'h Host,
    config: Value,
    reference: bool,
}

impl<'h> Network<'h> {
    pub(crate) fn new(host: &'h Host, config: Value) -> Self {
        Self {
            host,
            config,
            reference: false,
        }
    }

    /// The same network under the reference's executables, delegates included.
    pub fn by_reference(&self) -> Self {
        Self {
            reference: true,
            ..self.clone()
        }
    }

    /// Sets a key; dots lead into objects: `ipam.routes`.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        let mut place = &mut self.config;
        for part in key.split('.') {
            place = &mut place[part];
        }
        *place = value.into();
        self
    }

    /// Removes a key of the document.
    pub fn without(mut self, key: &str) -> Self {
        self.config.as_object_mut().unwrap().remove(key);
        self
    }

    /// The document.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// A run of the plugin with this configuration and nothing else.
    pub fn call(&self, verb: &str) -> Invocation {
        let name = self.config["type"].as_str().unwrap();
        let invocation = if self.reference {
            self.host.reference(name).env("CNI_PATH", crate::REFERENCE)
        } else {
            self.host.plugin(name)
        };
        invocation.verb(verb).config(&self.config)
    }

    /// A run of the plugin for a sandbox's eth0.
    pub fn on(&self, verb: &str, sandbox: &Sandbox) -> Invocation {
        self.call(verb).sandbox(sandbox)
    }

    /// ADD, which has to succeed.
    #[track_caller]
    pub fn add(&self, sandbox: &Sandbox) -> Value {
        self.on("ADD", sandbox).ok()
    }

    /// DEL, which has to succeed and to print nothing.
    #[track_caller]
    pub fn del(&self, sandbox: &Sandbox) {
        assert_eq!(self.on("DEL", sandbox).ok(), Value::Null);
    }

    /// CHECK against the result of an ADD, ready to be run.
    pub fn check(&self, sandbox: &Sandbox, result: &Value) -> Invocation {
        let with_result = self.clone().with("prevResult", result.clone());
        with_result.on("CHECK", sandbox)
    }

    /// GC where nothing but the eth0 of `valid` is still in use, ready to be run.
    pub fn gc(&self, valid: &[&Sandbox]) -> Invocation {
        let entry = |sandbox: &&Sandbox| json!({"containerID": sandbox.name(), "ifname": "eth0"});
        let list: Vec<_> = valid.iter().map(entry).collect();
        let newest = self.clone().with("cniVersion", "1.1.0");
        newest
            .with_key("cni.dev/valid-attachments", list.into())
            .call("GC")
    }

    /// Sets a key of the document whose name may hold dots.
    pub fn with_key(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }
}
