//! Verbs of the specification, and RELOAD, a verb of this suite that restores firewall rules.

use serde::{Deserialize, Serialize};

use crate::SpecVersion;

/// A verb of the specification, or RELOAD, a verb of this suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display(rename_all = "UPPERCASE")]
#[serde(rename_all = "UPPERCASE")]
pub enum Verb {
    /// Attaches a sandbox.
    Add,
    /// Detaches a sandbox, even if parts of it no longer exist.
    Del,
    /// Compares the current state with the result of ADD.
    Check,
    /// Reports whether an ADD can succeed.
    Status,
    /// Removes resources of attachments that the runtime does not list.
    Gc,
    /// Lists the supported versions.
    Version,
    /// Restores rules that a reload of the host's firewall removed; not in the specification.
    Reload,
}

impl Verb {
    pub(crate) const ALL: [Self; 7] = [
        Self::Add,
        Self::Del,
        Self::Check,
        Self::Status,
        Self::Gc,
        Self::Version,
        Self::Reload,
    ];

    /// Returns the first version of the specification in which the verb can be used.
    pub fn since(self) -> SpecVersion {
        match self {
            Self::Add | Self::Del | Self::Version | Self::Reload => SpecVersion::V0_1_0,
            Self::Check => SpecVersion::V0_4_0,
            Self::Status | Self::Gc => SpecVersion::V1_1_0,
        }
    }
}
