//! What the tools of the suite know of a plugin, as one value that the plugin's library exports.
//!
//! `node` lists these values. No plugin's executable uses them, so the linker leaves them out.

use std::net::IpAddr;

use cni::json;
use ipnetwork::IpNetwork;
use nft::Table;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The keys of a plugin or of its `ipam` section.
pub type Keys = Map<String, Value>;

/// An address of a container, and its gateway.
pub type Address = (IpNetwork, Option<IpAddr>);

/// What the tools, cnitool and the agent, know of a plugin.
#[derive(Debug)]
pub struct Facts {
    /// The plugin's name, its CNI `type`.
    pub name: &'static str,
    /// What the host has of an attachment of this interface plugin.
    pub host_side: HostSide,
    /// Keys of settings of the host's end that only ADD applies. A command can make the link a port
    /// again, but not restore these settings.
    pub port_keys: &'static [&'static str],
    /// Where this IPAM plugin takes addresses from.
    pub addresses: Addresses,
    /// The `nf_tables` tables in which an attachment may have elements.
    pub tables: &'static [Elements],
    /// Tries what the plugin needs of the kernel, except for its tables, in this thread's network
    /// namespace, which is a temporary one. Returns what the kernel lacks.
    pub missing_features: fn() -> anyhow::Result<Vec<MissingFeature>>,
    /// Capabilities of which the plugin or its caller should declare one.
    pub argument: Option<Argument>,
    /// Returns what a plugin with these keys and declared capabilities does for an attachment, if
    /// only one plugin of a list can do it.
    pub tasks: fn(&Keys, &[String]) -> Vec<ScopedTask>,
    /// Returns a message for each value that is probably a mistake. STATUS reports the same.
    pub warnings: fn(&Keys) -> Vec<String>,
    /// Whether each ADD with such a value fails.
    pub are_warnings_fatal: bool,
    /// Returns a message for each thing of the host that an attachment took, and that has not come
    /// back completely although the attachment's sandbox has ended or DEL ran.
    pub unreturned: fn() -> anyhow::Result<Vec<String>>,
    /// Whether the plugin of this name in containernetworking/plugins adds rules to the firewall.
    pub replaces_rules: bool,
}

impl Facts {
    /// Returns the facts of a plugin that leaves nothing on the host.
    pub const fn of(name: &'static str) -> Self {
        Self {
            name,
            host_side: HostSide::None,
            port_keys: &[],
            addresses: Addresses::Elsewhere,
            tables: &[],
            missing_features: || Ok(Vec::new()),
            argument: None,
            tasks: |_, _| Vec::new(),
            warnings: |_| Vec::new(),
            are_warnings_fatal: false,
            unreturned: || Ok(Vec::new()),
            replaces_rules: false,
        }
    }

    /// Returns whether an attachment may have elements in the table called `name`.
    pub fn has_table(&self, name: &str) -> bool {
        self.tables.iter().any(|it| it.table == name)
    }

    /// Returns whether the plugin takes values of the capability `name` from the runtime.
    pub fn takes(&self, name: &str) -> bool {
        let argument = self.argument.as_ref();
        argument.is_some_and(|it| it.capabilities.contains(&name))
    }
}

/// What the host has of an attachment, besides elements of `nf_tables`.
#[derive(Debug)]
pub enum HostSide {
    /// A port of the bridge whose name the function returns.
    Port(fn(&Keys) -> &str),
    /// A link with the gateway's address and a route to each address of the container.
    Routed,
    /// A record of the sandbox in which the link lives (`attach::Witness`).
    Witness,
    /// Nothing that shows whether the sandbox exists.
    None,
}

/// Where an IPAM plugin takes addresses from.
#[derive(Debug)]
pub enum Addresses {
    /// From ranges with the keys of host-local. The leases are files as those of host-local.
    Ranges,
    /// From the configuration: all that the function returns.
    Fixed(fn(&Keys) -> Vec<Address>),
    /// From something that the `ipam` section does not show, or the plugin leases none.
    Elsewhere,
}

/// Elements of attachments in `nf_tables`.
#[derive(Debug)]
pub struct Elements {
    /// Name of the table.
    pub table: &'static str,
    /// Returns the table in each family that has it, without elements.
    pub tables: fn() -> Vec<Table>,
    /// When the plugin needs the table, and what happens if the kernel does not support it.
    pub need: Need,
    /// Returns whether ADD gave the attachment elements in the table, if the kernel supports it.
    pub are_expected: fn(&Added<'_>) -> bool,
    /// What the plugin creates before the elements.
    pub proof: Proof,
}

impl Elements {
    /// Whether every ADD fails if the kernel does not support the table.
    pub fn is_required(&self) -> bool {
        self.need.consequence == Consequence::AddFails
    }
}

/// What proves that the owner of elements exists.
#[derive(Debug, Clone, Copy)]
pub enum Proof {
    /// The host's end of its veth pair.
    HostLink,
    /// A record. The function returns whether the owner with this tag has one.
    Record(fn(&str) -> bool),
}

/// An attachment, and what one plugin got at ADD.
pub struct Added<'a> {
    /// The keys of the plugin.
    pub keys: &'a Keys,
    /// What the runtime passed for the capabilities that the plugin declares.
    pub arguments: Keys,
    /// The addresses of the container.
    pub addresses: &'a [IpNetwork],
    /// The attachment's tag.
    pub owner: &'a str,
    /// Returns whether netfilter sees the frames of the bridge with this name, first of IPv4, then
    /// of IPv6.
    pub sees_frames: &'a dyn Fn(&str) -> [bool; 2],
}

/// When a plugin needs something of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Keys of which the configuration must have one; always, if there are none.
    pub keys: &'static [&'static str],
    /// What happens if the kernel lacks it.
    pub consequence: Consequence,
}

impl Need {
    /// Returns the need of a plugin all of whose ADDs with one of `keys` fail without it.
    pub const fn with(keys: &'static [&'static str]) -> Self {
        Self {
            keys,
            consequence: Consequence::AddFails,
        }
    }
}

/// What happens if a feature is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// Every ADD fails.
    AddFails,
    /// Only ADDs of pods with a limit fail.
    LimitedAddFails,
    /// ADD succeeds, but all packets of a limited pod wait in one queue, without `fq_codel`.
    OneQueue,
}

/// A missing kernel feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingFeature {
    /// Text that names the missing feature, or the kernel's error.
    pub reason: String,
    /// Names of the plugins that need the feature: [`Facts::missing_features`] leaves out its own.
    pub plugins: Vec<&'static str>,
    /// When they need it, and what happens without it.
    pub need: Need,
    /// Modules with the feature; empty if it is not known that it is in a module.
    pub modules: Vec<&'static str>,
}

impl MissingFeature {
    /// Returns the missing `feature`, which a plugin needs with `keys`, if `tried` is an error.
    pub fn of<T>(
        tried: Result<T, netlink::Error>,
        feature: &str,
        keys: &'static [&'static str],
    ) -> Vec<Self> {
        let Err(error) = tried else {
            return Vec::new();
        };
        let reason = if error.is_not_supported() {
            format!("the kernel does not support {feature}")
        } else {
            format!("{:#}", anyhow::Error::from(error))
        };
        vec![Self {
            reason,
            plugins: Vec::new(),
            need: Need::with(keys),
            modules: Vec::new(),
        }]
    }
}

/// Capabilities whose values a plugin takes from the runtime.
#[derive(Debug)]
pub struct Argument {
    /// The capabilities, the usual one first. Any of them suffices.
    pub capabilities: &'static [&'static str],
    /// Returns whether a plugin with these keys needs the value.
    pub is_needed: fn(&Keys) -> bool,
    /// Whether a list that needs it and does not declare it is certainly wrong.
    pub is_required: bool,
    /// What happens without it.
    pub impact: &'static str,
}

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

/// A task of a plugin, and the pods for which the plugin has it.
pub type ScopedTask = (Task, Scope);

/// The pods for which a plugin has a [`Task`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every pod of the network.
    All,
    /// Pods for which the runtime or the kubelet asks for it.
    Asking,
}

/// Parses the keys of a plugin as `T`; `None` if a value has the wrong type.
pub fn read<T: DeserializeOwned>(keys: &Keys) -> Option<T> {
    let keys = Value::Object(keys.clone());
    Some(json::read(&keys, "").ok()?.value)
}

/// Returns whether the plugin's key `name` is `true`.
pub fn is_set(keys: &Keys, name: &str) -> bool {
    json::value(keys, name) == Some(&Value::Bool(true))
}

/// Returns whether the plugin has none of the keys `names`.
pub fn lacks_all(keys: &Keys, names: &[&str]) -> bool {
    names.iter().all(|it| json::value(keys, it).is_none())
}
