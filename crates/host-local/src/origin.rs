//! The request for which an address is leased.

use cni::AddRequest;
use serde::{Deserialize, Serialize};

use crate::sandbox::Sandbox;

/// The request for which an address is leased.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// `type` of the configuration: the plugin that called this one.
    pub plugin: String,
    /// The bridge, if the plugin is `bridge`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
}

impl Origin {
    /// Returns the origin of the leases of this request.
    pub(crate) fn of(request: &AddRequest) -> Self {
        // ADD does not need these keys of the calling plugin: a wrong type is no error.
        let caller = |key| request.network.key::<String>(key).unwrap_or_default();
        let (plugin, bridge) = (caller("type"), Some(caller("bridge")));
        let bridge = bridge.filter(|it| !it.is_empty());
        let bridge = bridge.unwrap_or_else(|| USUAL_BRIDGE.to_owned());
        Self {
            sandbox: Sandbox::at(&request.netns),
            bridge: (plugin == "bridge").then_some(bridge),
            plugin,
        }
    }
}

/// Default of the key `bridge` of the plugin `bridge`.
const USUAL_BRIDGE: &str = "cni0";
