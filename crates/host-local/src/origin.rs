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
}

/// The key `type` of the configuration, which ADD does not need: a wrong type is no error.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Caller {
    r#type: String,
}

impl Origin {
    /// Returns the origin of the leases of this request.
    pub(crate) fn of(request: &AddRequest) -> Self {
        let caller: Caller = request.network.quiet_config().unwrap_or_default();
        Self {
            sandbox: Sandbox::at(&request.netns),
            plugin: caller.r#type,
        }
    }
}
