//! `limit`: changes the bandwidth of a live attachment.
//!
//! The new rates become the runtime's argument `bandwidth` in the cached result. So CHECK and RELOAD
//! agree with them.

use anyhow::{Context as _, anyhow, bail, ensure};
use bandwidth::{ANNOTATIONS, POD_ANNOTATIONS};
use clap::Args;
use cni::{Attachment, ContainerId, InterfaceName, NetworkName, note};
use runtime::{Arguments, Chain, Conflist, Directories, Entry, PluginConfig, Sandbox, may_exist};
use serde_json::{Map, Value, json};

/// The attachment, and its new rates.
#[derive(Debug, Args)]
pub struct Change {
    /// The network's name
    network: NetworkName,
    /// The container's ID, as `cnitool ps` shows it
    container: ContainerId,
    /// Rate that the container receives: bit/s, such as 20M or 1.5Gi, or none [default: unchanged]
    #[arg(long, value_parser = rate)]
    ingress: Option<u64>,
    /// Rate that the container sends: bit/s, such as 20M or 1.5Gi, or none [default: unchanged]
    #[arg(long, value_parser = rate)]
    egress: Option<u64>,
}

impl Change {
    /// Changes the limits in the kernel, then the cached result.
    ///
    /// # Errors
    /// The attachment is not cached or no longer exists; its configuration does not take rates from
    /// the runtime; the plugin fails; the cache cannot be written.
    pub fn run(&self, directories: &Directories, interface: &InterfaceName) -> anyhow::Result<()> {
        ensure!(
            self.ingress.or(self.egress).is_some(),
            "nothing to change: set --ingress or --egress"
        );
        let attachment = Attachment {
            network: self.network.clone(),
            container: self.container.clone(),
            interface: interface.clone(),
        };
        let entry = directories.cache.read(&attachment)?.with_context(|| {
            format!(
                "no result of {attachment} is cached: see cnitool ps, and set CNI_CACHE_DIR if the \
                 runtime has a cache of its own"
            )
        })?;
        let network = entry.network(&directories.networks)?;
        let network = network.context("its entry in the cache has no configuration")?;
        let limiting = Limiting {
            chain: Chain::new(&network, directories),
            plugin: plugin(&network)?,
            attachment: &attachment,
        };
        let arguments = self.arguments(&entry.arguments)?;
        limiting.apply(entry, arguments)
    }

    /// Returns the arguments with the new rates.
    fn arguments(&self, cached: &Arguments) -> anyhow::Result<Arguments> {
        let mut capabilities = cached.capabilities.clone();
        let given = capabilities.get("bandwidth").cloned().unwrap_or(json!({}));
        let mut given: Map<String, Value> =
            serde_json::from_value(given).context("the cached argument bandwidth")?;
        let annotations = capabilities.get_mut(POD_ANNOTATIONS);
        let mut annotations = annotations.and_then(Value::as_object_mut);
        let asks = given
            .iter()
            .any(|(key, value)| is_rate(key) && value.as_u64() > Some(0));
        for ((annotation, [rate, burst]), new) in ANNOTATIONS
            .into_iter()
            .zip(KEYS)
            .zip([self.ingress, self.egress])
        {
            let annotated = annotations.as_mut().and_then(|it| it.remove(annotation));
            let annotated = annotated.filter(|_| !asks);
            let annotated = annotated.as_ref().and_then(Value::as_str);
            if let Some(bits) = new.or(annotated.and_then(bandwidth::quantity::parse)) {
                given.insert(rate.to_owned(), json!(bits));
                given.insert(burst.to_owned(), json!(0));
            }
        }
        capabilities.insert("bandwidth".to_owned(), Value::Object(given));
        Ok(Arguments {
            capabilities,
            ..cached.clone()
        })
    }
}

/// An attachment whose limits change.
struct Limiting<'a> {
    chain: Chain<'a>,
    plugin: &'a PluginConfig,
    attachment: &'a Attachment,
}

impl Limiting<'_> {
    /// Calls ADD, which changes limits in place and makes missing ones, then RELOAD, which removes
    /// what is no longer asked for.
    fn apply(&self, entry: Entry, arguments: Arguments) -> anyhow::Result<()> {
        let (chain, attachment) = (&self.chain, self.attachment);
        let sandbox = Sandbox {
            arguments: arguments.clone(),
            ..entry.sandbox(attachment)
        };
        ensure!(
            !sandbox.netns.as_os_str().is_empty() && may_exist(&sandbox.netns),
            "the sandbox of {attachment} no longer exists"
        );
        let result = entry.result(chain.network.version)?;
        let result = result.context("its entry in the cache has no result")?;
        let before = without_ifb(result, attachment);
        let result = chain.add_again(self.plugin, &sandbox, before)?;
        chain.reload_one(self.plugin, &sandbox, result.clone())?;
        let cache = &chain.directories.cache;
        if cache.replace(attachment, &entry.with(arguments, result))? {
            return Ok(());
        }
        if let Err(error) = chain.del_one(self.plugin, &sandbox) {
            note(format_args!("{error:#}"));
        }
        bail!("{attachment} was deleted meanwhile")
    }
}

/// Returns the plugin `bandwidth` of a network.
///
/// # Errors
/// The network has none, or the plugin does not take rates from the runtime.
fn plugin(network: &Conflist) -> anyhow::Result<&PluginConfig> {
    let name = &network.name;
    let mut plugins = network.plugins.iter();
    let plugin = plugins.find(|it| it.program == bandwidth::PLUGIN.name);
    let plugin = plugin.with_context(|| format!("network {name} has no plugin bandwidth"))?;
    let mut own = KEYS.iter().flatten().filter_map(|it| plugin.key(it));
    ensure!(
        own.all(Value::is_null),
        "the configuration of network {name} sets the rates, and a runtime's do not count"
    );
    let is_declared = plugin.capabilities.iter().any(|it| it == "bandwidth");
    ensure!(
        is_declared,
        "bandwidth of network {name} takes no rates from runtimes: its capabilities lack bandwidth"
    );
    Ok(plugin)
}

/// Returns the result of the plugins before `bandwidth`, which reports its ifb.
fn without_ifb(mut result: Value, attachment: &Attachment) -> Value {
    let names = bandwidth::ifb_names(attachment);
    let is_ifb = |link: &Value| {
        let is_on_host = link.get("sandbox").is_none_or(|it| it == "");
        let name = link.get("name").and_then(Value::as_str);
        is_on_host && names.iter().any(|it| Some(it.as_str()) == name)
    };
    if let Some(links) = result.get_mut("interfaces").and_then(Value::as_array_mut) {
        links.retain(|it| !is_ifb(it));
    }
    result
}

/// Parses bits per second; 0 is `none`.
fn rate(text: &str) -> anyhow::Result<u64> {
    if text == "none" {
        return Ok(0);
    }
    let bits = bandwidth::quantity::parse(text);
    let bits = bits.filter(|it| (8..=MOST).contains(it));
    bits.ok_or_else(|| anyhow!("expected none, or a quantity from 8 to 1P, such as 20M"))
}

fn is_rate(key: &str) -> bool {
    KEYS.iter().any(|[rate, _]| *rate == key)
}

/// Keys of the argument `bandwidth`: rate and burst of each direction.
const KEYS: [[&str; 2]; 2] = [
    ["ingressRate", "ingressBurst"],
    ["egressRate", "egressBurst"],
];

/// Bit/s; the highest rate of the plugin.
const MOST: u64 = 1_000_000_000_000_000;
