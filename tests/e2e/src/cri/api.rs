//! The messages of the Container Runtime Interface, version 1, that pod sandboxes need. Their
//! numbers are those of `pkg/apis/runtime/v1/api.proto` in kubernetes/cri-api, their JSON names,
//! too.
//!
//! They are written by hand, so no code generator and no `protoc` is needed.

use std::collections::HashMap;

use prost::Message;
use serde::{Deserialize, Serialize};

/// Configuration of a pod sandbox.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PodSandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<PodSandboxMetadata>,
    #[prost(string, tag = "2")]
    pub hostname: String,
    #[prost(string, tag = "3")]
    pub log_directory: String,
    #[prost(message, optional, tag = "4")]
    pub dns_config: Option<DnsConfig>,
    #[prost(message, repeated, tag = "5")]
    pub port_mappings: Vec<PortMapping>,
    #[prost(map = "string, string", tag = "6")]
    pub labels: HashMap<String, String>,
    #[prost(map = "string, string", tag = "7")]
    pub annotations: HashMap<String, String>,
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxPodSandboxConfig>,
}

/// Identity of a pod sandbox; a runtime accepts each one only once at a time.
#[derive(Clone, PartialEq, Message, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}

/// Content of the pod's resolv.conf(5).
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DnsConfig {
    #[prost(string, repeated, tag = "1")]
    pub servers: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub searches: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    pub options: Vec<String>,
}

/// A host port.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PortMapping {
    /// 0 is TCP, 1 UDP, 2 SCTP.
    #[prost(int32, tag = "1")]
    pub protocol: i32,
    #[prost(int32, tag = "2")]
    pub container_port: i32,
    #[prost(int32, tag = "3")]
    pub host_port: i32,
    #[prost(string, tag = "4")]
    pub host_ip: String,
}

/// Settings for Linux only.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinuxPodSandboxConfig {
    #[prost(string, tag = "1")]
    pub cgroup_parent: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct RunPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    pub config: Option<PodSandboxConfig>,
}

/// The answer to `RunPodSandbox`; requests to stop and to remove have the same form.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxId {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStatusRequest {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: String,
    #[prost(bool, tag = "2")]
    pub verbose: bool,
}

/// Status of a sandbox.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<PodSandboxStatus>,
    /// The runtime's own information: one JSON document, named `info`.
    #[prost(map = "string, string", tag = "2")]
    pub info: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct PodSandboxStatus {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<PodSandboxMetadata>,
    /// 0 is ready.
    #[prost(int32, tag = "3")]
    pub state: i32,
    #[prost(message, optional, tag = "5")]
    pub network: Option<PodSandboxNetworkStatus>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct PodSandboxNetworkStatus {
    #[prost(string, tag = "1")]
    pub ip: String,
    #[prost(message, repeated, tag = "2")]
    pub additional_ips: Vec<PodIp>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct PodIp {
    #[prost(string, tag = "1")]
    pub ip: String,
}

/// A message without content.
#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

/// The runtime's configuration of the node.
#[derive(Clone, PartialEq, Message)]
pub struct UpdateRuntimeConfigRequest {
    #[prost(message, optional, tag = "1")]
    pub runtime_config: Option<RuntimeConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct RuntimeConfig {
    #[prost(message, optional, tag = "1")]
    pub network_config: Option<NetworkConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NetworkConfig {
    /// Networks of both families, separated by a comma.
    #[prost(string, tag = "1")]
    pub pod_cidr: String,
}

/// Whether the runtime can run pods.
#[derive(Clone, PartialEq, Message)]
pub struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<RuntimeStatus>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct RuntimeStatus {
    #[prost(message, repeated, tag = "1")]
    pub conditions: Vec<RuntimeCondition>,
}

/// `RuntimeReady` and `NetworkReady`.
#[derive(Clone, PartialEq, Message, Serialize)]
pub struct RuntimeCondition {
    #[prost(string, tag = "1")]
    pub r#type: String,
    #[prost(bool, tag = "2")]
    pub status: bool,
    #[prost(string, tag = "3")]
    pub reason: String,
    #[prost(string, tag = "4")]
    pub message: String,
}
