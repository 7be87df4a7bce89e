//! What one verb passes to the plugins of a list.

use std::ffi::OsString;

use cni::{SearchPath, Verb};
use serde_json::{Map, Value};

use crate::conflist::PluginConfig;
use crate::sandbox::Sandbox;

/// A verb, and what every plugin of a list gets with it.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub verb: Verb,
    sandbox: Option<&'a Sandbox>,
    /// Keys that are added to the configuration of every plugin, such as `prevResult`.
    pub keys: Map<String, Value>,
}

impl<'a> Call<'a> {
    pub fn new(verb: Verb) -> Self {
        Self {
            verb,
            sandbox: None,
            keys: Map::new(),
        }
    }

    pub fn on(sandbox: &'a Sandbox, verb: Verb, prev_result: Option<Value>) -> Self {
        let result = prev_result.map(|it| ("prevResult".to_owned(), it));
        Self {
            verb,
            sandbox: Some(sandbox),
            keys: result.into_iter().collect(),
        }
    }

    pub fn keys_for(&self, plugin: &PluginConfig) -> Map<String, Value> {
        let mut keys = self.keys.clone();
        let arguments = self.sandbox.map(|it| &it.arguments);
        let passed = arguments.map(|it| it.runtime_config(&plugin.capabilities));
        if let Some(passed) = passed.filter(|it| !it.is_empty()) {
            keys.insert("runtimeConfig".to_owned(), Value::Object(passed));
        }
        keys
    }

    /// Returns all environment variables of the CNI protocol. A variable that the verb does not use
    /// is empty, so that a plugin does not inherit its value from the environment of this process.
    pub fn environment(&self, path: &SearchPath) -> [(&'static str, OsString); 6] {
        let of = |text: fn(&Sandbox) -> OsString| self.sandbox.map(text).unwrap_or_default();
        let container = of(|it| it.attachment.container.as_str().into());
        let interface = of(|it| it.attachment.interface.as_str().into());
        [
            ("CNI_COMMAND", self.verb.to_string().into()),
            ("CNI_CONTAINERID", container),
            ("CNI_NETNS", of(|it| it.netns.clone().into())),
            ("CNI_IFNAME", interface),
            ("CNI_ARGS", of(|it| it.arguments.cni_text().into())),
            ("CNI_PATH", path.to_string().into()),
        ]
    }
}
