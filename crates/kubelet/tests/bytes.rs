//! Compares encoded messages with those of another implementation.
//!
//! The expected bytes are from Google's Python protobuf 7.36.2, by `grpcio-tools` 1.85.1 from the
//! messages of api.proto in Kubernetes (staging/src/k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1),
//! with `SerializeToString(deterministic=True).hex()`.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::collections::HashMap;
use std::fmt::{Debug, Write as _};

use kubelet::device_plugin::{
    AllocateResponse, ContainerAllocateResponse, Device, DevicePluginOptions, DeviceSpec, HEALTHY,
    ListAndWatchResponse, NumaNode, RegisterRequest, Topology, UNHEALTHY, VERSION,
};
use prost::Message;

#[track_caller]
fn expect<M: Message + Default + PartialEq + Debug>(message: &M, hex: &str) {
    let bytes = message.encode_to_vec();
    let mut encoded = String::new();
    for byte in &bytes {
        write!(encoded, "{byte:02x}").unwrap();
    }
    assert_eq!(encoded, hex);
    assert_eq!(&M::decode(bytes.as_slice()).unwrap(), message);
}

fn map(key: &str, value: &str) -> HashMap<String, String> {
    HashMap::from([(key.to_owned(), value.to_owned())])
}

#[test]
fn a_registration_has_the_bytes_of_protobuf() {
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: "cni-agent-tun.sock".to_owned(),
        resource_name: "example.org/tun".to_owned(),
        options: Some(DevicePluginOptions {
            pre_start_required: false,
            get_preferred_allocation_available: true,
        }),
    };
    expect(&request, REGISTRATION);
}

#[test]
fn a_list_with_topology_has_the_bytes_of_protobuf() {
    let nodes = vec![NumaNode { id: 0 }, NumaNode { id: 1 }];
    let near = Device {
        id: "egress-00001".to_owned(),
        health: HEALTHY.to_owned(),
        topology: Some(Topology { nodes }),
    };
    let unhealthy = Device {
        id: "egress-00002".to_owned(),
        health: UNHEALTHY.to_owned(),
        topology: None,
    };
    let devices = vec![near, unhealthy];
    expect(&ListAndWatchResponse { devices }, LIST);
}

#[test]
fn an_allocation_has_the_bytes_of_protobuf() {
    let tun = "/dev/net/tun".to_owned();
    let complete = ContainerAllocateResponse {
        envs: map("A", "b"),
        devices: vec![DeviceSpec {
            container_path: tun.clone(),
            host_path: tun,
            permissions: "rw".to_owned(),
        }],
        annotations: map("c", "d"),
    };
    let container_responses = vec![complete, ContainerAllocateResponse::default()];
    expect(
        &AllocateResponse {
            container_responses,
        },
        ALLOCATION,
    );
}

const REGISTRATION: &str = concat!(
    "0a07763162657461311212636e692d6167656e742d74756e2e736f636b1a0f6578616d706c652e6f",
    "72672f74756e22021001",
);

const LIST: &str = concat!(
    "0a1f0a0c6567726573732d303030303112074865616c7468791a060a000a0208010a190a0c656772",
    "6573732d30303030321209556e6865616c746879",
);

const ALLOCATION: &str = concat!(
    "0a320a060a01411201621a200a0c2f6465762f6e65742f74756e120c2f6465762f6e65742f74756e",
    "1a02727722060a01631201640a00",
);
