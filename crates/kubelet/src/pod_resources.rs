//! The pod resources API `v1`: the kubelet lists which devices it gave to which container
//! (staging/src/k8s.io/kubelet/pkg/apis/podresources/v1/api.proto in Kubernetes).
//!
//! The method `Get` is left out. It returns the devices of one pod, and the agent needs those of
//! all pods, which `List` returns.

use prost::Message;

pub use crate::generated::{pod_resources_lister_client, pod_resources_lister_server};

/// Asks the kubelet which devices the containers of all pods have.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ListRequest {}

/// The kubelet's answer to [`ListRequest`]: the devices of all pods.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListResponse {
    /// The pods.
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<PodResources>,
}

/// Asks the kubelet which devices it may give to containers.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct AllocatableRequest {}

/// The kubelet's answer to [`AllocatableRequest`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AllocatableResponse {
    /// Devices that the kubelet may give to containers, including those that containers already
    /// have.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<ContainerDevices>,
}

/// The devices that the kubelet gave to the containers of a pod.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodResources {
    /// Name of the pod.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Namespace of the pod.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// The pod's containers.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// The devices that the kubelet gave to a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerResources {
    /// Name of the container.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Devices of the container, grouped by resource.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
}

/// Devices of one resource.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerDevices {
    /// The resource: `DOMAIN/NAME`.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// IDs of the devices.
    #[prost(string, repeated, tag = "2")]
    pub ids: Vec<String>,
}
