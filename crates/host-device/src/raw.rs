//! The configuration keys as the operator writes them. `crates/schema` copies the comments of the
//! keys into the JSON Schema, so write them for operators.

use cni::keys::RawDns;
use schemars::JsonSchema;
use serde::Deserialize;

/// Moves a device of the host into the sandbox, and back at DEL.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RawConfig {
    /// Name of the device. Of several keys that name a device, the first one counts.
    pub device: String,
    /// MAC of the device.
    pub hwaddr: String,
    /// Absolute path of the device below `/sys/devices`.
    #[schemars(regex(pattern = "^(/sys/devices/.*)?$"))]
    pub kernelpath: String,
    /// PCI address of the device; `runtimeConfig.deviceID` replaces it.
    #[serde(rename = "pciBusID")]
    pub pci_bus_id: String,
    /// Name resolution of the result, instead of the IPAM plugin's.
    pub dns: RawDns,
}
