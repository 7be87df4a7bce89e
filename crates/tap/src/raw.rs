//! The configuration keys as the operator writes them. `crates/schema` copies the comments of the
//! keys into the JSON Schema, so write them for operators.

use attach::{RawDns, RawMtu};
use schemars::JsonSchema;
use serde::Deserialize;

/// Gives the sandbox a tap link, which a program such as a virtual machine opens.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RawConfig {
    /// A program may open the link several times, once for each of its queues.
    pub multi_queue: bool,
    /// MTU in bytes; 0 takes the kernel's, 1500.
    #[schemars(with = "RawMtu")]
    pub mtu: u32,
    /// MAC of the link, not of the virtual machine; the runtime's and `CNI_ARGS` take precedence.
    pub mac: String,
    /// Number of the user whose programs may open the link; without it, all users' may.
    #[schemars(range(min = 0, max = 4_294_967_294_u32))]
    pub owner: Option<u32>,
    /// Number of the group whose programs may open the link; without it, all groups' may.
    #[schemars(range(min = 0, max = 4_294_967_294_u32))]
    pub group: Option<u32>,
    /// `SELinux` context of the link.
    pub selinux_context: String,
    /// Name of a bridge in the sandbox of which the link becomes a port.
    #[schemars(length(max = 15))]
    pub bridge: String,
    /// Name resolution of the result, instead of the IPAM plugin's.
    pub dns: RawDns,
}
