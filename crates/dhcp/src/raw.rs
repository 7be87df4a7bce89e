//! The configuration keys as the operator writes them. `crates/schema` copies the comments of the
//! keys into the JSON Schema, so write them for operators.

use schemars::JsonSchema;
use serde::Deserialize;

/// Leases addresses from a DHCP server over the container's interface.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RawConfig {
    /// Absolute path of the daemon's socket.
    #[schemars(regex(pattern = "^/"), extend("default" = "/run/cni/dhcp.sock"))]
    pub daemon_socket_path: String,
    /// Options that the server is asked for, besides `routers` and `subnet-mask`.
    pub request: Vec<RawRequest>,
    /// Options for the server, such as the container's name.
    pub provide: Vec<RawProvide>,
    /// Metric of the routes in the result; 0 for none.
    pub priority: u32,
}

/// An option that the server is asked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RawRequest {
    /// Leaves out `routers` and `subnet-mask`, which are asked for by default.
    pub skip_default: bool,
    /// Number of the option, such as `121`, or its name.
    pub option: String,
}

/// An option for the server.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(extend("required" = ["option"]))]
#[serde(rename_all = "camelCase", default)]
pub struct RawProvide {
    /// Number of the option, such as `12`, or its name.
    pub option: String,
    /// Its value.
    pub value: String,
    /// Key of `CNI_ARGS` whose value replaces `value`.
    pub from_arg: String,
}
