//! The configuration keys as the operator writes them. `crates/schema` copies the comments of the
//! keys into the JSON Schema, so write them for operators.

use attach::{RawDns, RawMtu};
use netlink::MacVlanMode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Gives the sandbox a link with a MAC of its own on a network card of the host.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RawConfig {
    /// Name of the link below. Without it, the first interface in `prevResult`, or else the link of
    /// the default route.
    pub master: String,
    /// Which frames the link exchanges with others of its master.
    pub mode: Mode,
    /// MTU in bytes, at most the master's; 0 takes that.
    #[schemars(with = "RawMtu")]
    pub mtu: u32,
    /// MAC; the runtime's and `CNI_ARGS` take precedence.
    pub mac: String,
    /// The master is in the sandbox.
    pub link_in_container: bool,
    /// Length of the queue for broadcasts. The longest of all links of the master counts; 0 leaves the
    /// kernel's, 1000.
    #[serde(rename = "bcqueuelen")]
    pub bc_queue_len: u32,
    /// Name resolution of the result, instead of the IPAM plugin's.
    pub dns: RawDns,
}

/// The mode of a macvlan link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Frames go directly to the other links.
    #[default]
    #[serde(alias = "")]
    Bridge,
    /// The links do not reach each other.
    Private,
    /// Frames go out to a switch, which sends them back.
    Vepa,
    /// The only link of its master, with the master's MAC.
    Passthru,
}

impl From<Mode> for MacVlanMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Bridge => Self::Bridge,
            Mode::Private => Self::Private,
            Mode::Vepa => Self::Vepa,
            Mode::Passthru => Self::Passthrough,
        }
    }
}
