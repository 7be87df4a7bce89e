//! The pod resources API `v1`: the kubelet lists which devices it gave to which container
//! (staging/src/k8s.io/kubelet/pkg/apis/podresources/v1/api.proto in Kubernetes).
//!
//! The method `Get` is left out. It returns the devices of one pod, and the agent needs those of
//! all pods, which `List` returns.

use prost::Message;

pub use crate::generated::{pod_resources_lister_client, pod_resources_lister_server};

/// Asks for the resources of all pods.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ListRequest {}

/// The resources of all pods.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListResponse {
    /// The pods.
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<PodResources>,
}

/// Asks for the resources that pods may request.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct AllocatableRequest {}

/// The resources that pods may request.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AllocatableResponse {
    /// The devices, allocated or not.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<ContainerDevices>,
}

/// The resources of a pod.
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

/// The resources of a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerResources {
    /// Name of the container.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Devices of the container.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
}

/// Devices of one resource.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerDevices {
    /// The resource: `DOMAIN/NAME`.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// The devices.
    #[prost(string, repeated, tag = "2")]
    pub ids: Vec<String>,
}
