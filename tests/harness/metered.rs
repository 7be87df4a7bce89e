//! Pods with ports and limits, for tests of what `cnitool metrics` counts.

use serde_json::{Value, json};

use crate::{Host, Sandbox, Tool};

/// Configures the network `pods` of bridge, portmap and bandwidth, with these keys of bandwidth.
pub fn limited<'h>(host: &'h Host, bandwidth: &Value) -> Tool<'h> {
    let tool = host.tool();
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let bridge = host
        .bridge()
        .with("isDefaultGateway", true)
        .with("ipMasq", true)
        .with("ipam.reuseDelay", "1h");
    let mut limits = json!({"type": "bandwidth"});
    let keys = limits.as_object_mut().unwrap();
    keys.extend(bandwidth.as_object().unwrap().clone());
    tool.configure("pods", &[bridge.config().clone(), portmap, limits]);
    tool
}

/// Configures the network with limits of 10 Mbit/s towards a pod and 1 Mbit/s from it.
pub fn both(host: &Host) -> Tool<'_> {
    limited(
        host,
        &json!({"ingressRate": 10_000_000, "egressRate": 1_000_000}),
    )
}

/// Attaches a pod of the namespace `shop` with a TCP and a UDP port of the host. The pod has the
/// sandbox's name.
#[track_caller]
pub fn attach(tool: &Tool<'_>, pod: &Sandbox, port: u16) {
    let ports = json!({"portMappings": [
        {"hostPort": port, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": port, "containerPort": 53, "protocol": "udp"},
    ]});
    let arguments = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={}",
        pod.name()
    );
    let add = tool.on("add", "pods", pod);
    let add = add.env("CAP_ARGS", ports.to_string());
    add.env("CNI_ARGS", arguments).ok();
}
