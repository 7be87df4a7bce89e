//! `limit`: changes the bandwidth of a live attachment.
//!
//! The new rates become the runtime's argument `bandwidth` in the cached result. So CHECK and
//! RELOAD (a verb of this suite that restores lost rules) use the new rates.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail, ensure};
use bandwidth::{ANNOTATIONS, CAPABILITY, POD_ANNOTATIONS};
use clap::{ArgGroup, Args};
use cni::files::Hold;
use cni::{Attachment, NetworkName, SearchPath, Verb};
use runtime::{Cache, Chain, Conflist, Directories, HeldEntry, PluginConfig, may_exist};
use serde_json::{Map, Value, json};

use crate::sandbox;
use crate::settings::Settings;

/// The attachment and its new rates.
#[derive(Debug, Args)]
#[group(skip)]
#[command(group = ArgGroup::new("rates").args(["ingress", "egress"]).required(true).multiple(true))]
pub struct Change {
    /// The network's name
    network: NetworkName,
    /// The container's ID or its first 12 or more characters, as `cnitool ps` prints it, or the path of its
    /// network namespace
    container: PathBuf,
    /// Rate that the container receives: bit/s, such as 20M or 64k, or none [default: unchanged]
    #[arg(long, value_name = "RATE", value_parser = rate, allow_hyphen_values = true)]
    ingress: Option<u64>,
    /// Rate that the container sends: bit/s, such as 20M or 64k, or none [default: unchanged]
    #[arg(long, value_name = "RATE", value_parser = rate, allow_hyphen_values = true)]
    egress: Option<u64>,
}

impl Change {
    /// Changes the limits in the kernel, then the cached result.
    ///
    /// # Errors
    /// The attachment is not cached or no longer exists; its network does not take rates from the
    /// runtime; the plugin does not know RELOAD, or fails; the cached result cannot be replaced.
    pub fn run(&self, settings: &Settings) -> anyhow::Result<()> {
        let directories = &settings.directories;
        let found = settings.attached(&self.network, &self.container)?;
        let attachment = &found.map_or_else(|| self.unknown(settings), |it| Ok(it.attachment))?;
        let held = live_entry(directories, attachment)?;
        let network = held.entry.network_or_current(&directories.networks)?;
        let plugin = plugin(&network)?;
        expect_reload(&directories.plugins, &plugin.program)?;
        let capabilities = self.changed(&held.entry.arguments.capabilities)?;
        let replacement = held.prepare(capabilities)?;
        let chain = Chain::new(&network, directories);
        chain.change_limits(
            plugin,
            (attachment, replacement.entry()),
            &self.directions(),
        )?;
        let is_replaced = replacement.exchange().with_context(|| {
            format!(
                "the limits of {attachment} have changed, but its cached result has not: check \
                 reports the difference until you run this command again"
            )
        })?;
        ensure!(is_replaced, "{attachment} was deleted meanwhile");
        Ok(())
    }

    /// Returns the attachment of a container that is not found by its names in the cache, if the command
    /// line has its ID: the file may have the names of another one.
    fn unknown(&self, settings: &Settings) -> anyhow::Result<Attachment> {
        sandbox::named(&self.container)
            .with_context(|| settings.lacks(&self.network, &self.container))?;
        let unattached = settings.unattached(&self.network, &self.container)?;
        Ok(unattached.attachment)
    }

    /// Returns the directions for which the command line has a new rate: `ingress`, `egress` or
    /// both.
    fn directions(&self) -> Vec<&'static str> {
        let named = [("ingress", self.ingress), ("egress", self.egress)];
        let named = named.into_iter().filter(|(_, rate)| rate.is_some());
        named.map(|(direction, _)| direction).collect()
    }

    /// Returns the cached arguments of the capabilities, with the new rates in `bandwidth`. Removes
    /// the rates in the pod's annotations, because the plugin would use them whenever `bandwidth`
    /// has no rate, as after `--ingress none`. If the plugin took a rate from the annotations and
    /// this command does not change the rate, moves the rate into `bandwidth`.
    fn changed(&self, cached: &Map<String, Value>) -> anyhow::Result<Map<String, Value>> {
        let mut capabilities = cached.clone();
        let asked = capabilities.remove(CAPABILITY).unwrap_or_default();
        let mut asked = match asked {
            Value::Object(asked) => asked,
            Value::Null => Map::new(),
            other => bail!("the cached argument bandwidth is {other}"),
        };
        let is_rate = |key: &str| KEYS.iter().any(|it| it[0].eq_ignore_ascii_case(key));
        let mut keys = asked.iter();
        let asks = keys.any(|(key, value)| is_rate(key) && value.as_u64() != Some(0));
        let annotations = capabilities.get_mut(POD_ANNOTATIONS);
        let mut annotations = annotations.and_then(Value::as_object_mut);
        let changes = KEYS
            .into_iter()
            .zip(ANNOTATIONS)
            .zip([self.ingress, self.egress]);
        for (([rate, burst], annotation), new) in changes {
            let annotated = annotations.as_mut().and_then(|it| it.remove(annotation));
            let annotated = annotated.filter(|_| !asks);
            let annotated = annotated.as_ref().and_then(Value::as_str);
            if let Some(bits) = new.or_else(|| bandwidth::quantity::parse(annotated?)) {
                let is_other =
                    |key: &String| ![rate, burst].iter().any(|it| it.eq_ignore_ascii_case(key));
                asked.retain(|key, _| is_other(key));
                asked.insert(rate.to_owned(), json!(bits));
            }
        }
        capabilities.insert(CAPABILITY.to_owned(), Value::Object(asked));
        Ok(capabilities)
    }
}

/// Locks the cached result of `attachment`. If another process has the lock, waits for a limited
/// time.
///
/// # Errors
/// The cached result does not exist, belongs to another attachment, or cannot be locked or read. Or
/// the attachment's sandbox no longer exists.
fn live_entry(directories: &Directories, attachment: &Attachment) -> anyhow::Result<HeldEntry> {
    let held = directories.cache.hold(attachment, Hold::Exclusive)?;
    let held = held.with_context(|| Cache::lacks(attachment))?;
    ensure!(
        held.entry.attachment().context(NO_NAMES)? == *attachment,
        "the cached result of {attachment} is that of another attachment, because both have the \
         same file name"
    );
    let netns = held.entry.netns();
    ensure!(
        !netns.as_os_str().is_empty() && may_exist(netns),
        "the sandbox of {attachment} no longer exists"
    );
    Ok(held)
}

/// Returns the plugin `bandwidth` of a network.
///
/// # Errors
/// The network's list does not have the plugin exactly once, sets rates for all containers, or does
/// not declare the capability `bandwidth`, without which the plugin takes no rates from a runtime.
fn plugin(network: &Conflist) -> anyhow::Result<&PluginConfig> {
    let name = &network.name;
    let is_limiting = |it: &&PluginConfig| node::facts(&it.program).takes(CAPABILITY);
    let found: Vec<_> = network.plugins.iter().filter(is_limiting).collect();
    let plugin = match found.as_slice() {
        [plugin] => *plugin,
        [] => bail!("the configuration list of network {name} has no plugin bandwidth"),
        _ => bail!("the configuration list of network {name} has the plugin bandwidth twice"),
    };
    let mut own = KEYS.iter().flatten().filter_map(|it| plugin.key(it));
    ensure!(
        own.all(Value::is_null),
        "the configuration list of network {name} sets rates for all containers: change it there"
    );
    ensure!(
        plugin.capabilities.iter().any(|it| it == CAPABILITY),
        "the configuration list of network {name} has the plugin bandwidth without \
         \"capabilities\": {{\"bandwidth\": true}}, so it takes no rates from a runtime"
    );
    Ok(plugin)
}

/// Checks that the limiting plugin supports RELOAD, because RELOAD with the key `changeLimits`
/// changes the limits. A plugin of another suite does not know RELOAD, and may run another verb
/// instead.
fn expect_reload(path: &SearchPath, name: &str) -> anyhow::Result<()> {
    let verbs = runtime::abilities(path, name)?.verbs;
    let reload = Verb::Reload.to_string();
    ensure!(
        verbs.is_some_and(|it| it.contains(&reload)),
        "plugin {name} in {path} does not support {reload}: only the one of this suite changes limits"
    );
    Ok(())
}

/// Parses a rate in bit/s. `none` is 0, which means no limit.
fn rate(text: &str) -> anyhow::Result<u64> {
    if text == "none" {
        return Ok(0);
    }
    let bits = bandwidth::quantity::parse(text);
    let bits = bits.filter(|it| (LEAST..=MOST).contains(it));
    bits.ok_or_else(|| anyhow!("expected none, or a quantity from 1k to 1P bit/s, such as 20M"))
}

const NO_NAMES: &str = "its entry in the cache has only a result";

/// Keys of the runtime's argument `bandwidth`: rate and burst of each direction.
const KEYS: [[&str; 2]; 2] = [
    ["ingressRate", "ingressBurst"],
    ["egressRate", "egressBurst"],
];

/// Lowest rate in bit/s that a user can set. `MOST` is the highest.
const LEAST: u64 = 1000;
const MOST: u64 = 1_000_000_000_000_000;
