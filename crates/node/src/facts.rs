//! Facts about plugins, which follow from their roles and keys.

use bandwidth::POD_ANNOTATIONS;
use cni::json;
use runtime::PluginConfig;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Something that at most one plugin of a list can do for an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// Make the container's interface.
    MakeInterface,
    /// Limit what the container receives.
    LimitIngress,
    /// Limit what the container sends.
    LimitEgress,
}

/// The pods for which a plugin has a [`Task`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Every pod of the network.
    All,
    /// Pods for which the runtime or the kubelet asks for it.
    Asking,
}

/// A value in a plugin's configuration that is probably a mistake. STATUS of the plugin reports it
/// on standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt<'a> {
    /// Name of the plugin.
    pub plugin: &'a str,
    /// The key, its value and what it does.
    pub message: String,
    /// What it does to ADDs.
    pub effect: Effect,
}

/// What a doubtful value does to ADDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Every ADD fails.
    AddFails,
    /// ADDs succeed.
    None,
}

/// Returns whether the plugin belongs to this suite.
pub fn is_of_suite(plugin: &PluginConfig) -> bool {
    role(&plugin.program).is_some()
}

/// Returns whether ADD of the plugin fails without `prevResult`. Returns `false` for plugins of
/// other suites.
pub fn is_chained(plugin: &PluginConfig) -> bool {
    role(&plugin.program) == Some("chained")
}

/// Returns the tasks of a plugin with these keys. Returns none for plugins of other suites.
pub fn tasks(plugin: &PluginConfig) -> Vec<(Task, Extent)> {
    match role(&plugin.program) {
        Some("interface pair") => vec![(Task::MakeInterface, Extent::All)],
        Some(_) if plugin.program == bandwidth::PLUGIN.name => limits(plugin),
        _ => Vec::new(),
    }
}

/// Returns the limits that a plugin `bandwidth` may set. Its own keys win over those of the runtime.
fn limits(plugin: &PluginConfig) -> Vec<(Task, Extent)> {
    let own: bandwidth::RawConfig = read(&Value::Object(plugin.config.clone())).unwrap_or_default();
    let mut declared = plugin.capabilities.iter();
    let is_asked = declared.any(|it| ["bandwidth", POD_ANNOTATIONS].contains(&it.as_str()));
    let is_allocated = plugin.key("podResources").is_some_and(|it| *it != false);
    let of = |task, rate: Option<u64>| match rate {
        Some(rate) if rate > 0 => Some((task, Extent::All)),
        _ if is_allocated || is_asked && !own.is_given() => Some((task, Extent::Asking)),
        _ => None,
    };
    let limits = [
        of(Task::LimitIngress, own.ingress_rate),
        of(Task::LimitEgress, own.egress_rate),
    ];
    limits.into_iter().flatten().collect()
}

/// Returns the doubtful values in the configuration of a plugin and of its IPAM plugin.
pub fn doubts(plugin: &PluginConfig) -> Vec<Doubt<'_>> {
    let own = Value::Object(plugin.config.clone());
    let ipam = plugin.key("ipam").cloned().unwrap_or_default();
    let sections = plugin.programs().zip([own, ipam]);
    let doubts = sections.flat_map(|(plugin, keys)| {
        let checks = CHECKS.iter().filter(|it| it.0 == plugin);
        let doubts = checks.flat_map(|(_, effect, check)| {
            let messages = check(&keys).into_iter();
            messages.map(|message| Doubt {
                plugin,
                message,
                effect: *effect,
            })
        });
        doubts.collect::<Vec<_>>()
    });
    doubts.collect()
}

type Check = fn(&Value) -> Vec<String>;

/// The plugins whose STATUS reports doubtful values.
const CHECKS: [(&str, Effect, Check); 2] = [
    (bandwidth::PLUGIN.name, Effect::None, |keys| {
        read(keys).map_or_else(Vec::new, |it| bandwidth::doubts(&it))
    }),
    (static_ipam::PLUGIN.name, Effect::AddFails, |keys| {
        read(keys).map_or_else(Vec::new, |it| static_ipam::doubts(&it))
    }),
];

fn read<T: DeserializeOwned>(keys: &Value) -> Option<T> {
    Some(json::read(keys, "").ok()?.value)
}

/// Returns the role of a plugin of this suite, as `crates/plugins.txt` has it.
fn role(program: &str) -> Option<&'static str> {
    let mut suite = cni::suite();
    suite
        .find(|(name, _)| *name == program)
        .map(|(_, role)| role)
}
