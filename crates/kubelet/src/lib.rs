//! Messages and services with which a node agent talks to the kubelet and to a container runtime,
//! by gRPC on Unix sockets.
//!
//! The messages have the field numbers of Kubernetes' definitions. They leave out fields that no
//! caller reads: a receiver of Protocol Buffers skips unknown fields.

pub mod cri;
pub mod device_plugin;
pub mod pod_resources;

/// The clients and servers that `build.rs` generates.
#[expect(
    unused_qualifications,
    clippy::allow_attributes,
    clippy::pedantic,
    reason = "generated code"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/v1beta1.Registration.rs"));
    include!(concat!(env!("OUT_DIR"), "/v1beta1.DevicePlugin.rs"));
    include!(concat!(env!("OUT_DIR"), "/v1.PodResourcesLister.rs"));
    include!(concat!(env!("OUT_DIR"), "/runtime.v1.RuntimeService.rs"));
}
