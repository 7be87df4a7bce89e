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

/// Keys of the calling plugin, which ADD does not need: a wrong type is no error.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Caller {
    r#type: String,
    bridge: String,
}

impl Origin {
    /// Returns the origin of the leases of this request.
    pub(crate) fn of(request: &AddRequest) -> Self {
        let caller: Caller = request.network.quiet_config().unwrap_or_default();
        let bridge = match caller.bridge.as_str() {
            "" => USUAL_BRIDGE.to_owned(),
            name => name.to_owned(),
        };
        Self {
            sandbox: Sandbox::at(&request.netns),
            bridge: (caller.r#type == "bridge").then_some(bridge),
            plugin: caller.r#type,
        }
    }
}

/// Default of the key `bridge` of the plugin `bridge`.
const USUAL_BRIDGE: &str = "cni0";
