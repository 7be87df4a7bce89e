//! The device plugin API `v1beta1`, between the kubelet and a device plugin
//! (staging/src/k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto in Kubernetes).

use std::collections::HashMap;

use prost::Message;

/// The version of the API that this module defines.
pub const VERSION: &str = "v1beta1";

/// Name of the kubelet's socket in the directory of device plugins.
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// State of a device that the kubelet may allocate.
pub const HEALTHY: &str = "Healthy";

/// State of a device that the kubelet must not allocate.
pub const UNHEALTHY: &str = "Unhealthy";

// The kubelet serves `registration`, and each device plugin serves `device_plugin`.
pub use crate::generated::{
    device_plugin_client, device_plugin_server, registration_client, registration_server,
};

/// A message without fields: the answer to [`RegisterRequest`], and the request of calls that need
/// no arguments.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Empty {}

/// The optional methods of a device plugin that the kubelet may call.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct DevicePluginOptions {
    /// Whether the kubelet has to call `PreStartContainer` before each start of a container.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// Whether the device plugin has `GetPreferredAllocation`, so that the kubelet may call it.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// Announces a device plugin to the kubelet.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegisterRequest {
    /// The version of the API: [`VERSION`].
    #[prost(string, tag = "1")]
    pub version: String,
    /// The name of the plugin's socket, in the directory of device plugins.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// The resource that pods request: `DOMAIN/NAME`.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// The plugin's optional methods.
    #[prost(message, optional, tag = "4")]
    pub options: Option<DevicePluginOptions>,
}

/// All devices of a resource, as a device plugin reports them to the kubelet.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListAndWatchResponse {
    /// The devices, healthy or not.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// A device of a resource, as a device plugin reports it to the kubelet.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Device {
    /// ID of the device: at most 63 characters, unique within the resource.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
    /// The NUMA nodes near the device, if known.
    #[prost(message, optional, tag = "3")]
    pub topology: Option<Topology>,
}

/// The NUMA nodes near a device.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Topology {
    /// The NUMA nodes.
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NumaNode>,
}

/// A NUMA node.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct NumaNode {
    /// The kernel's number of the node.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// The kubelet asks with this request which devices suit each container best. The kubelet need not
/// follow the answer.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreferredAllocationRequest {
    /// One request for each container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerPreferredAllocationRequest>,
}

/// Asks which of the available devices suit a container best.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerPreferredAllocationRequest {
    /// IDs of the devices to choose from.
    #[prost(string, repeated, tag = "1")]
    pub available: Vec<String>,
    /// IDs of the devices that the answer must contain.
    #[prost(string, repeated, tag = "2")]
    pub must_include: Vec<String>,
    /// Number of devices in the answer.
    #[prost(int32, tag = "3")]
    pub size: i32,
}

/// The device plugin's answer to [`PreferredAllocationRequest`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreferredAllocationResponse {
    /// One answer for each container.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerPreferredAllocationResponse>,
}

/// The devices that suit a container best.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerPreferredAllocationResponse {
    /// IDs of the devices.
    #[prost(string, repeated, tag = "1")]
    pub devices: Vec<String>,
}

/// The kubelet sends this request before it creates containers with devices.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AllocateRequest {
    /// One request for each container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerAllocateRequest>,
}

/// The devices that the kubelet is about to give to a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerAllocateRequest {
    /// IDs of the devices.
    #[prost(string, repeated, tag = "1")]
    pub devices: Vec<String>,
}

/// The device plugin's answer to [`AllocateRequest`].
#[derive(Clone, PartialEq, Message)]
pub struct AllocateResponse {
    /// One answer for each container.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerAllocateResponse>,
}

/// What a container needs to use its devices.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerAllocateResponse {
    /// Environment variables that the container gets.
    #[prost(map = "string, string", tag = "1")]
    pub envs: HashMap<String, String>,
    /// Device files that the container gets.
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<DeviceSpec>,
    /// Annotations of the container, for the runtime.
    #[prost(map = "string, string", tag = "4")]
    pub annotations: HashMap<String, String>,
}

/// A device file of the host that the container gets.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeviceSpec {
    /// Path in the container.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Path on the host.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// Any of `r` (read), `w` (write) and `m` (mknod).
    #[prost(string, tag = "3")]
    pub permissions: String,
}

/// The kubelet sends this request before each start of a container with devices, if the device
/// plugin set `pre_start_required`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreStartContainerRequest {
    /// IDs of the devices.
    #[prost(string, repeated, tag = "1")]
    pub devices: Vec<String>,
}

/// Answer of a device plugin: the container may start.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct PreStartContainerResponse {}
