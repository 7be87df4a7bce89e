//! Calls the plugins of a network for a verb, as libcni does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use cni::{Attachment, GOING_ON, SearchPath, SpecVersion, Verb, all, delegate, note, or_note};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::cache::{Cache, Entry};
use crate::call::Call;
use crate::conflist::{Conflist, PluginConfig};
use crate::sandbox::Sandbox;

/// A network, and the directories that calls of its plugins need.
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a> {
    /// The network's configuration list.
    pub network: &'a Conflist,
    /// The directories of configurations, plugins and cached results.
    pub directories: &'a Directories,
    /// Time limit of each call of a plugin; `None` for no limit. Calls of RELOAD and VERSION have
    /// limits of their own.
    limit: Option<Duration>,
}

/// The directories of a runtime: configurations, plugins, cache.
#[derive(Debug, Clone)]
pub struct Directories {
    /// `NETCONFPATH`: the directory of network configurations.
    pub networks: PathBuf,
    /// `CNI_PATH`: the directories of plugins.
    pub plugins: SearchPath,
    /// `CNI_CACHE_DIR`: the directories with cached results.
    pub cache: Cache,
}

impl<'a> Chain<'a> {
    /// Combines a network with the directories of a runtime. Plugins have no time limit.
    pub fn new(network: &'a Conflist, directories: &'a Directories) -> Self {
        Self {
            network,
            directories,
            limit: None,
        }
    }

    /// Limits the time of each plugin. A plugin that takes longer is killed with its process group
    /// and counts as failed. Ctrl-C does not reach a plugin with a limit, because it runs in a
    /// process group of its own.
    pub fn within(self, limit: Duration) -> Self {
        Self {
            limit: Some(limit),
            ..self
        }
    }

    /// Calls ADD of each plugin to attach `sandbox`. Caches and returns the result of the last
    /// plugin.
    ///
    /// # Errors
    /// A plugin fails or prints no valid result; the result cannot be cached.
    pub fn add(&self, sandbox: &Sandbox) -> anyhow::Result<Value> {
        let mut result = None;
        for plugin in &self.network.plugins {
            let printed = self.call(plugin, &Call::on(sandbox, Verb::Add, result))?;
            result = Some(self.read_result(plugin, &printed)?);
        }
        let result = result.context("the network has no plugins")?;
        let cache = &self.directories.cache;
        cache.write(self.network, sandbox, result.clone())?;
        Ok(result)
    }

    /// Calls CHECK of each plugin, which compares `sandbox` with the cached result of ADD. Does
    /// nothing if the list sets `disableCheck`.
    ///
    /// # Errors
    /// The version of the list has no CHECK; the cache has no entry or an invalid one; a plugin
    /// fails.
    pub fn check(&self, sandbox: &Sandbox) -> anyhow::Result<()> {
        let has_check = self.network.version >= Verb::Check.since();
        ensure!(has_check, self.too_old(Verb::Check));
        if self.network.disable_check {
            note("nothing is checked: disableCheck is set");
            return Ok(());
        }
        let attachment = &sandbox.attachment;
        let entry = self.directories.cache.read(attachment)?;
        let entry = entry.with_context(|| Cache::lacks(attachment))?;
        let call = Call::on(sandbox, Verb::Check, self.prev_result(Some(&entry))?);
        self.call_each(self.network.plugins.iter(), &call)
    }

    /// Calls DEL of each plugin in reverse order to detach `sandbox`. Stops at the first plugin
    /// that fails.
    ///
    /// After success, removes the cached result, whatever the `cniVersion`. Newer versions of
    /// libcni keep the result if `cniVersion` is below 0.4.0.
    ///
    /// # Errors
    /// A plugin fails; the cached result cannot be removed.
    pub fn del(&self, sandbox: &Sandbox) -> anyhow::Result<()> {
        let cache = &self.directories.cache;
        let entry = cache.read(&sandbox.attachment);
        let result = entry.and_then(|entry| self.prev_result(entry.as_ref()));
        let result = or_note(result, GOING_ON).flatten();
        let call = Call::on(sandbox, Verb::Del, result);
        self.call_each(self.network.plugins.iter().rev(), &call)?;
        cache.remove(&sandbox.attachment)
    }

    /// Detaches `sandbox` like [`Self::del`], but with the configuration that ADD used, if that is
    /// cached. For example, if `dataDir` has changed since ADD, DEL with the current configuration
    /// would not find the lease.
    ///
    /// # Errors
    /// As [`Self::del`].
    pub fn del_as_added(&self, sandbox: &Sandbox) -> anyhow::Result<()> {
        let entry = self.directories.cache.read(&sandbox.attachment);
        let network = entry.ok().flatten().and_then(|it| {
            let then = it.network(&self.directories.networks);
            or_note(then, "using the current configuration").flatten()
        });
        let network = network.as_ref().unwrap_or(self.network);
        Chain { network, ..*self }.del(sandbox)
    }

    /// Removes all attachments of the network, even live ones. Detaches every cached attachment,
    /// then calls GC of every plugin with an empty list of valid attachments. Continues after a
    /// failure. If the version of the list has no GC, reports on standard error that attachments
    /// without a cached result stay.
    ///
    /// # Errors
    /// The cache cannot be read, or plugins fail; the error contains all their failures.
    pub fn remove_all(&self) -> anyhow::Result<()> {
        let mut outcomes = Vec::new();
        let cache = &self.directories.cache;
        for (attachment, entry) in cache.of_network(&self.network.name)? {
            note!("DEL {attachment}");
            outcomes.push(self.del_as_added(&entry.sandbox(&attachment)));
        }
        if self.network.version < Verb::Gc.since() {
            note!(
                "attachments without a cached result stay: {}",
                self.too_old(Verb::Gc)
            );
        } else {
            let mut call = Call::new(Verb::Gc);
            // The second key is the former name of the first.
            for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
                call.keys.insert(key.to_owned(), json!([]));
            }
            let plugins = self.network.plugins.iter();
            outcomes.extend(plugins.map(|it| self.call(it, &call).map(drop)));
        }
        all(outcomes)
    }

    /// Calls STATUS of every plugin; stops at the first error. If the version of the list has no
    /// STATUS, calls no plugin, reports this on standard error, and succeeds.
    ///
    /// # Errors
    /// A plugin reports that no ADD can succeed, or cannot be run.
    pub fn status(&self) -> anyhow::Result<()> {
        if self.network.version < Verb::Status.since() {
            note(self.too_old(Verb::Status));
            return Ok(());
        }
        self.call_each(self.network.plugins.iter(), &Call::new(Verb::Status))
    }

    /// Calls STATUS of one plugin and returns its error; `None` if STATUS succeeds. The plugin's
    /// standard error is discarded.
    pub fn refusal(&self, plugin: &PluginConfig) -> Option<anyhow::Error> {
        let call = Call::new(Verb::Status);
        self.run(plugin, &call, Stdio::null()).err()
    }

    /// Calls RELOAD of the network's plugins whose names are in `reloading`. RELOAD, a verb of this
    /// suite, restores rules that a reload of the host's firewall removed. A failure does not stop
    /// the calls of the remaining plugins.
    ///
    /// # Errors
    /// The cached result is invalid, or plugins fail; the error contains all their failures. A
    /// plugin that takes longer than 30 s is killed and counts as failed.
    pub fn reload(
        &self,
        sandbox: &Sandbox,
        entry: &Entry,
        reloading: &BTreeSet<String>,
    ) -> anyhow::Result<()> {
        let result = entry.result(self.network.version)?;
        let call = Call::on(sandbox, Verb::Reload, result);
        let plugins = self.network.all_plugins().into_iter();
        let plugins = plugins.filter(|it| reloading.contains(&it.program));
        all(plugins.map(|it| self.call(&it, &call).map(drop)))
    }

    /// Calls RELOAD (a verb of this suite) of `plugin` with the key `changeLimits`. The plugin then
    /// sets the limits in `directions` (`ingress`, `egress`) to the rates in the arguments of
    /// `entry`.
    ///
    /// # Errors
    /// The cached result is invalid; the plugin fails or takes longer than 30 s.
    pub fn change_limits(
        &self,
        plugin: &PluginConfig,
        (attachment, entry): (&Attachment, &Entry),
        directions: &[&str],
    ) -> anyhow::Result<()> {
        let key = "changeLimits";
        let mut sandbox = entry.sandbox(attachment);
        let mut plugin = plugin.clone();
        let capabilities = &mut sandbox.arguments.capabilities;
        capabilities.insert(key.to_owned(), json!(directions));
        plugin.capabilities.push(key.to_owned());
        let result = entry.result(self.network.version)?;
        let call = Call::on(&sandbox, Verb::Reload, result);
        self.call(&plugin, &call).map(drop)
    }

    fn too_old(&self, verb: Verb) -> String {
        let (name, version, since) = (&self.network.name, self.network.version, verb.since());
        format!("{verb} was not called: it needs cniVersion {since}, network {name} says {version}")
    }

    /// Returns the `prevResult` for CHECK and DEL: the result in `entry`. Returns `None` without a
    /// result, and for versions before 0.4.0, in which a runtime passes no `prevResult`.
    fn prev_result(&self, entry: Option<&Entry>) -> anyhow::Result<Option<Value>> {
        let entry = entry.filter(|_| self.network.version >= Verb::Check.since());
        let result = entry.map(|entry| entry.result(self.network.version));
        Ok(result.transpose()?.flatten())
    }

    /// Parses and returns the result that a plugin printed. A result without a version gets the
    /// version of the network.
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

    /// Calls the plugins in this order, and stops at the first one that fails.
    fn call_each<'p>(
        &self,
        mut plugins: impl Iterator<Item = &'p PluginConfig>,
        call: &Call<'_>,
    ) -> anyhow::Result<()> {
        plugins.try_for_each(|it| self.call(it, call).map(drop))
    }

    fn call(&self, plugin: &PluginConfig, call: &Call<'_>) -> anyhow::Result<Vec<u8>> {
        self.run(plugin, call, Stdio::inherit())
    }

    fn run(
        &self,
        plugin: &PluginConfig,
        call: &Call<'_>,
        stderr: Stdio,
    ) -> anyhow::Result<Vec<u8>> {
        let (name, path) = (&plugin.program, &self.directories.plugins);
        let mut command = Command::new(find(path, name)?);
        command.envs(call.environment(path)).stderr(stderr);
        let request = plugin.request(self.network, call.keys_for(plugin));
        let limit = match call.verb {
            Verb::Reload => Some(LONGEST_RELOAD),
            _ => self.limit,
        };
        let answer = delegate::run(limit, name, &mut command, &request);
        answer.map_err(|error| match error {
            cni::Error::Delegate { plugin, object, .. } => {
                let details = match object.details.as_str() {
                    "" => String::new(),
                    details => format!(": {details}"),
                };
                let (msg, code) = (object.msg, object.code);
                anyhow!("plugin {plugin}: {msg}{details} (code {code})")
            }
            other => anyhow!(other),
        })
    }
}

/// A plugin's answer to VERSION.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Abilities {
    /// Verbs of the plugin; `None` if the answer does not contain them.
    pub verbs: Option<Vec<String>>,
    /// Supported versions of the specification; `None` if the answer does not contain them.
    pub supported_versions: Option<Vec<String>>,
}

/// Calls VERSION of the plugin `name` and returns its answer. If the plugin does not support
/// VERSION, returns an answer without content.
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

/// Calls VERSION of the executable `program`, and returns its answer. Errors contain `name` as the
/// name of the plugin.
///
/// # Errors
/// The executable cannot be run, or fails.
pub fn ask_abilities(
    path: &SearchPath,
    program: &Path,
    name: &str,
) -> Result<Abilities, cni::Error> {
    let mut command = Command::new(program);
    let request = json!({"cniVersion": SpecVersion::CURRENT.as_str()}).to_string();
    command.envs(Call::new(Verb::Version).environment(path));
    let limit = Some(LONGEST_VERSION);
    let answer = delegate::run(limit, name, &mut command, request.as_bytes())?;
    Ok(serde_json::from_slice(&answer).unwrap_or_default())
}

fn find(path: &SearchPath, name: &str) -> anyhow::Result<PathBuf> {
    let program = path.find(name);
    let exists = || path.directories().iter().any(|it| it.is_dir());
    program.with_context(|| {
        let more = if exists() {
            ""
        } else {
            ", which is no directory"
        };
        format!("plugin {name} is not in {path} (CNI_PATH){more}")
    })
}

/// Time limit of one call of RELOAD (a verb of this suite). A plugin needs some milliseconds, and
/// on a busy node at most a few seconds. Only the plugin `firewall` waits for other processes: for
/// firewalld and for the lock of legacy iptables.
const LONGEST_RELOAD: Duration = Duration::from_secs(30);

/// Time limit of VERSION, for which a plugin only prints a constant.
const LONGEST_VERSION: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
