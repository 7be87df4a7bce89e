//! The part of the container runtime interface `runtime.v1` that lists pod sandboxes
//! (staging/src/k8s.io/cri-api/pkg/apis/runtime/v1/api.proto in Kubernetes).

use prost::{Enumeration, Message};

#[expect(
    unused_qualifications,
    clippy::allow_attributes,
    clippy::pedantic,
    reason = "generated code"
)]
mod service {
    include!(concat!(env!("OUT_DIR"), "/runtime.v1.RuntimeService.rs"));
}

pub use service::{runtime_service_client, runtime_service_server};

/// Asks for the runtime's name and version.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct VersionRequest {
    /// The version of the kubelet's runtime API.
    #[prost(string, tag = "1")]
    pub version: String,
}

/// The runtime's name and version.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct VersionResponse {
    /// The version of the kubelet's runtime API.
    #[prost(string, tag = "1")]
    pub version: String,
    /// Name of the runtime, for example `containerd`.
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    /// Version of the runtime.
    #[prost(string, tag = "3")]
    pub runtime_version: String,
    /// Version of the interface.
    #[prost(string, tag = "4")]
    pub runtime_api_version: String,
}

/// Asks for all pod sandboxes, whatever their state. The filter of the interface is left out.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ListPodSandboxRequest {}

/// All pod sandboxes.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListPodSandboxResponse {
    /// The sandboxes.
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<PodSandbox>,
}

/// A pod sandbox. It has few fields to save memory: a list within the limit of bytes may have
/// millions of empty items.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodSandbox {
    /// The identifier that the runtime passes to plugins as `CNI_CONTAINERID`.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Whether the sandbox runs.
    #[prost(enumeration = "PodSandboxState", tag = "3")]
    pub state: i32,
}

/// Whether a sandbox runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum PodSandboxState {
    /// It runs.
    Ready = 0,
    /// It does not run, or not yet.
    NotReady = 1,
}
