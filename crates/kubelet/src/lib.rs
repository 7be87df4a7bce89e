//! Messages and services by which a node agent talks with the kubelet and with a container runtime,
//! over gRPC on Unix sockets.
//!
//! The messages have the field numbers of Kubernetes' definitions. They leave out fields that no
//! caller reads: a receiver of Protocol Buffers skips unknown fields.

pub mod cri;
pub mod device_plugin;
pub mod pod_resources;
