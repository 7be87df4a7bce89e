//! The part of the container runtime interface `runtime.v1` that lists pod sandboxes
//! (staging/src/k8s.io/cri-api/pkg/apis/runtime/v1/api.proto in Kubernetes).

use prost::{Enumeration, Message};

pub use crate::generated::{runtime_service_client, runtime_service_server};

/// Asks for the runtime's name and version. An answer shows that a runtime serves the socket.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct VersionRequest {}

/// The runtime's answer to [`VersionRequest`]. Name and version are left out: no caller reads them.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct VersionResponse {}

/// Asks for all pod sandboxes, whatever their state. CRI's field `filter` is left out.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ListPodSandboxRequest {}

/// The runtime's answer to [`ListPodSandboxRequest`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListPodSandboxResponse {
    /// All pod sandboxes, whatever their state.
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<PodSandbox>,
}

/// A pod sandbox, with few of its fields. Each further field would cost memory in every sandbox: an
/// empty sandbox takes two bytes in an answer, so some megabytes can contain millions of sandboxes.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodSandbox {
    /// The identifier that the runtime passes to plugins as `CNI_CONTAINERID`.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Number of a [`PodSandboxState`]: whether the sandbox runs. Only tests use it.
    #[prost(enumeration = "PodSandboxState", tag = "3")]
    pub state: i32,
}

/// Whether a sandbox runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum PodSandboxState {
    /// The sandbox runs.
    Ready = 0,
    /// The sandbox does not run, or does not run yet.
    NotReady = 1,
}
