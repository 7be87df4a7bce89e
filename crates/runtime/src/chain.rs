//! Runs a verb through the plugins of a network as libcni does.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, anyhow, bail, ensure};
use cni::{SearchPath, SpecVersion, Verb, delegate, note};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::cache::{Cache, Entry};
use crate::conflist::{Conflist, PluginConfig};
use crate::sandbox::Sandbox;

/// A network with everything that calls of its plugins need.
#[derive(Debug)]
pub struct Chain<'a> {
    /// The network's configuration list.
    pub network: &'a Conflist,
    /// Directory of network configurations.
    pub directory: &'a Path,
    /// Directories of plugins.
    pub path: &'a SearchPath,
    /// Cache of results.
    pub cache: &'a Cache,
}

impl Chain<'_> {
    /// Attaches `sandbox` and caches the result of the last plugin.
    ///
    /// # Errors
    /// A plugin fails or prints no valid result; the result cannot be cached.
    pub fn add(&self, sandbox: &Sandbox) -> anyhow::Result<Value> {
        let mut result = None;
        for plugin in &self.network.plugins {
            let request = self.request(plugin, sandbox, result.as_ref());
            let printed = self.call(plugin, &Call::on(sandbox, Verb::Add, request))?;
            result = Some(self.read_result(plugin, &printed)?);
        }
        let result = result.context("the network has no plugins")?;
        self.cache.write(self.network, sandbox, result.clone())?;
        Ok(result)
    }

    /// Compares `sandbox` with the state that ADD left.
    ///
    /// # Errors
    /// The version of the list has no CHECK; no result is cached; a plugin fails.
    pub fn check(&self, sandbox: &Sandbox) -> anyhow::Result<()> {
        self.require(Verb::Check)?;
        if self.network.disable_check {
            note("nothing is checked: disableCheck is set");
            return Ok(());
        }
        let entry = self.cache.read(&sandbox.attachment)?;
        let attachment = &sandbox.attachment;
        let entry = entry.with_context(|| {
            format!(
                "no result of {attachment} is cached: see cnitool ps, and set CNI_CACHE_DIR if \
                     the runtime has a cache of its own"
            )
        })?;
        let result = self.prev_result(Some(&entry))?;
        for plugin in &self.network.plugins {
            let request = self.request(plugin, sandbox, result.as_ref());
            self.call(plugin, &Call::on(sandbox, Verb::Check, request))?;
        }
        Ok(())
    }

    /// Detaches `sandbox`. It calls the plugins in reverse order and stops at the first that fails.
    ///
    /// It always removes the cached result. libcni keeps it for versions before 0.4.0.
    ///
    /// # Errors
    /// A plugin fails; the cached result cannot be removed.
    pub fn del(&self, sandbox: &Sandbox) -> anyhow::Result<()> {
        let entry = self.cache.read(&sandbox.attachment);
        let result = entry.and_then(|entry| self.prev_result(entry.as_ref()));
        let result = result.unwrap_or_else(|error| {
            note(format_args!("{error:#}; going on without it"));
            None
        });
        for plugin in self.network.plugins.iter().rev() {
            let request = self.request(plugin, sandbox, result.as_ref());
            self.call(plugin, &Call::on(sandbox, Verb::Del, request))?;
        }
        self.cache.remove(&sandbox.attachment)
    }

    /// Like [`Self::del`], but with the cached configuration of the ADD, if there is one. If
    /// `dataDir` had changed since, the current one would leave the lease behind.
    ///
    /// # Errors
    /// As [`Self::del`].
    pub fn del_as_added(&self, sandbox: &Sandbox) -> anyhow::Result<()> {
        let entry = self.cache.read(&sandbox.attachment).ok().flatten();
        let then = entry.map(|it| it.network(self.directory)).transpose();
        let then = then.unwrap_or_else(|error| {
            note(format_args!("{error:#}; using the current configuration"));
            None
        });
        let network = then.flatten();
        let chain = Chain {
            network: network.as_ref().unwrap_or(self.network),
            ..*self
        };
        chain.del(sandbox)
    }

    /// Detaches every cached attachment, then calls GC of every plugin with an empty list of valid
    /// attachments. It tries every step.
    ///
    /// # Errors
    /// The cache cannot be read; all that plugins report.
    pub fn remove_all(&self) -> anyhow::Result<()> {
        let mut errors = Vec::new();
        for (attachment, entry) in self.cache.of_network(&self.network.name)? {
            note(format_args!("DEL {attachment}"));
            let deleted = self.del_as_added(&entry.sandbox(&attachment));
            errors.extend(deleted.err());
        }
        if self.network.version < Verb::Gc.since() {
            note(self.too_old(Verb::Gc));
        } else {
            errors.extend(self.gc_plugins());
        }
        all(&errors)
    }

    /// Calls GC of every plugin with an empty list of valid attachments.
    fn gc_plugins(&self) -> Vec<anyhow::Error> {
        // The second key is the former name of the first.
        let keys = ["cni.dev/valid-attachments", "cni.dev/attachments"];
        let keys = keys.map(|key| (key.to_owned(), json!([])));
        let keys: Map<_, _> = keys.into_iter().collect();
        let plugins = self.network.plugins.iter();
        let called = plugins.map(|plugin| {
            let request = plugin.request(self.network, keys.clone());
            self.call(plugin, &Call::without_sandbox(Verb::Gc, request))
        });
        called.filter_map(Result::err).collect()
    }

    /// Calls STATUS of every plugin; stops at the first error.
    ///
    /// # Errors
    /// A plugin reports that no ADD can succeed, or cannot be run.
    pub fn status(&self) -> anyhow::Result<()> {
        if self.network.version < Verb::Status.since() {
            note(self.too_old(Verb::Status));
            return Ok(());
        }
        for plugin in &self.network.plugins {
            let request = plugin.request(self.network, Map::new());
            self.call(plugin, &Call::without_sandbox(Verb::Status, request))?;
        }
        Ok(())
    }

    /// Returns the first error of STATUS. The plugins' standard error is discarded.
    pub fn refusal(&self) -> Option<anyhow::Error> {
        let plugins = self.network.plugins.iter();
        let mut asked = plugins.map(|plugin| {
            let request = plugin.request(self.network, Map::new());
            let call = Call::without_sandbox(Verb::Status, request);
            self.run(plugin, &call, Stdio::null())
        });
        asked.find_map(Result::err)
    }

    /// Calls RELOAD of the plugins in `reloading`, which restores rules that a reload of the host's
    /// firewall removed. It calls each of them even after an error.
    ///
    /// # Errors
    /// The cached result is invalid; all that plugins report.
    pub fn reload(
        &self,
        (sandbox, entry): (&Sandbox, &Entry),
        reloading: &BTreeSet<String>,
    ) -> anyhow::Result<()> {
        let result = entry.result(self.network.version)?;
        let plugins = self.network.plugins.iter();
        let called = plugins
            .filter(|it| reloading.contains(&it.program))
            .map(|plugin| {
                let request = self.request(plugin, sandbox, result.as_ref());
                self.call(plugin, &Call::on(sandbox, Verb::Reload, request))
            });
        let errors: Vec<_> = called.filter_map(Result::err).collect();
        all(&errors)
    }

    fn require(&self, verb: Verb) -> anyhow::Result<()> {
        ensure!(self.network.version >= verb.since(), self.too_old(verb));
        Ok(())
    }

    fn too_old(&self, verb: Verb) -> String {
        let (name, version, since) = (&self.network.name, self.network.version, verb.since());
        format!(
            "no plugin was called: {verb} needs cniVersion {since}, network {name} says {version}"
        )
    }

    /// Returns the `prevResult` for CHECK and DEL, which they get since version 0.4.0.
    fn prev_result(&self, entry: Option<&Entry>) -> anyhow::Result<Option<Value>> {
        let entry = entry.filter(|_| self.network.version >= Verb::Check.since());
        let result = entry.map(|entry| entry.result(self.network.version));
        Ok(result.transpose()?.flatten())
    }

    fn request(&self, plugin: &PluginConfig, sandbox: &Sandbox, result: Option<&Value>) -> Vec<u8> {
        let mut keys = Map::new();
        if let Some(result) = result {
            keys.insert("prevResult".into(), result.clone());
        }
        let runtime_config = sandbox.arguments.runtime_config(&plugin.capabilities);
        if !runtime_config.is_empty() {
            keys.insert("runtimeConfig".into(), Value::Object(runtime_config));
        }
        plugin.request(self.network, keys)
    }

    /// Parses a plugin's result. A result without version has the version of the configuration.
    fn read_result(&self, plugin: &PluginConfig, printed: &[u8]) -> anyhow::Result<Value> {
        let what = || format!("plugin {}: decode its result", plugin.program);
        let mut result: Map<String, Value> = serde_json::from_slice(printed).with_context(what)?;
        let version = result.entry("cniVersion").or_insert(Value::Null);
        if version.as_str().unwrap_or_default().is_empty() {
            *version = json!(self.network.version.as_str());
        }
        let result = Value::Object(result);
        cni::result::read(result.clone(), self.network.version, &plugin.program)
            .with_context(what)?;
        Ok(result)
    }

    fn call(&self, plugin: &PluginConfig, call: &Call) -> anyhow::Result<Vec<u8>> {
        self.run(plugin, call, Stdio::inherit())
    }

    fn run(&self, plugin: &PluginConfig, call: &Call, stderr: Stdio) -> anyhow::Result<Vec<u8>> {
        let name = &plugin.program;
        let mut command = Command::new(find(self.path, name)?);
        command.envs(call.environment(self.path)).stderr(stderr);
        delegate::run(name, &mut command, &call.request).map_err(|error| match error {
            cni::Error::Delegate { plugin, object, .. } => {
                let details = match object.details.as_str() {
                    "" => String::new(),
                    details => format!(": {details}"),
                };
                anyhow!(
                    "plugin {plugin}: {}{details} (code {})",
                    object.msg,
                    object.code
                )
            }
            other => anyhow!(other),
        })
    }
}

/// One call of one plugin.
#[derive(Debug)]
struct Call<'a> {
    verb: Verb,
    sandbox: Option<&'a Sandbox>,
    /// The plugin's standard input.
    request: Vec<u8>,
}

impl<'a> Call<'a> {
    fn on(sandbox: &'a Sandbox, verb: Verb, request: Vec<u8>) -> Self {
        Self {
            verb,
            sandbox: Some(sandbox),
            request,
        }
    }

    fn without_sandbox(verb: Verb, request: Vec<u8>) -> Self {
        Self {
            verb,
            sandbox: None,
            request,
        }
    }

    /// Returns all variables of the protocol. Unused ones are empty, so a plugin does not inherit
    /// them from this tool's environment.
    fn environment(&self, path: &SearchPath) -> [(&'static str, OsString); 6] {
        let of = |text: fn(&Sandbox) -> OsString| self.sandbox.map(text).unwrap_or_default();
        [
            ("CNI_COMMAND", self.verb.as_str().into()),
            (
                "CNI_CONTAINERID",
                of(|it| it.attachment.container.as_str().into()),
            ),
            ("CNI_NETNS", of(|it| it.netns.clone().into())),
            (
                "CNI_IFNAME",
                of(|it| it.attachment.interface.as_str().into()),
            ),
            ("CNI_ARGS", of(|it| it.arguments.cni_text().into())),
            ("CNI_PATH", path.to_string().into()),
        ]
    }
}

/// A plugin's answer to VERSION.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Abilities {
    /// Its verbs; `None` if the answer does not contain them.
    pub verbs: Option<Vec<String>>,
    /// Its versions of the specification; `None` if the answer does not contain them.
    pub supported_versions: Option<Vec<String>>,
}

/// Returns the answer of the plugin `name` to VERSION; the default if it does not support VERSION.
///
/// # Errors
/// The plugin cannot be run.
pub fn abilities(path: &SearchPath, name: &str) -> anyhow::Result<Abilities> {
    match ask_abilities(path, &find(path, name)?, name) {
        // The plugin does not support VERSION.
        Err(cni::Error::Delegate { .. }) => Ok(Abilities::default()),
        answer => Ok(answer?),
    }
}

/// Like [`abilities`], for the executable `program`.
///
/// # Errors
/// It cannot be run, or fails.
pub fn ask_abilities(
    path: &SearchPath,
    program: &Path,
    name: &str,
) -> Result<Abilities, cni::Error> {
    let mut command = Command::new(program);
    let request = json!({"cniVersion": SpecVersion::CURRENT.as_str()}).to_string();
    let call = Call::without_sandbox(Verb::Version, request.into_bytes());
    command.envs(call.environment(path));
    let answer = delegate::run(name, &mut command, &call.request)?;
    Ok(serde_json::from_slice(&answer).unwrap_or_default())
}

fn find(path: &SearchPath, name: &str) -> anyhow::Result<PathBuf> {
    let program = path.find(name);
    program.with_context(|| format!("plugin {name} is not in {path}"))
}

fn all(errors: &[anyhow::Error]) -> anyhow::Result<()> {
    let texts: Vec<_> = errors.iter().map(|error| format!("{error:#}")).collect();
    if !texts.is_empty() {
        bail!("{}", texts.join("; "));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
