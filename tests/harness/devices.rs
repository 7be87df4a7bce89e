//! Hosts and configurations for tests of the device plugin of `cni-agent`.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{Agent, Host, Outcome, Place as _};

/// The resource of [`three`] with 10 Mbit/s towards the pod.
pub const INGRESS: &str = "example.org/ingress-10mbit";

/// The resource of [`three`] with 100 Mbit/s from the pod.
pub const EGRESS: &str = "example.org/egress-100mbit";

/// The resource of [`three`] and [`tun`] with /dev/net/tun.
pub const TUN: &str = "example.org/tun";

/// Returns a host with `uplink`, and a default route by it.
pub fn node() -> Host {
    let host = Host::new();
    drop(host.outside());
    host.ip("route add default via 192.0.2.2");
    host
}

/// Returns a host whose `uplink` has this speed, carrier and NUMA node, according to its driver.
pub fn node_with_driver(speed: &str, carrier: &str, numa_node: &str) -> Host {
    let host = node();
    host.run("mount", &["-t", "tmpfs", "tmpfs", "/sys/class/net"]);
    fs::create_dir_all("/sys/class/net/uplink/device").unwrap();
    for (file, text) in [
        ("speed", speed),
        ("carrier", carrier),
        ("device/numa_node", numa_node),
    ] {
        let text = format!("{text}\n");
        fs::write(Path::new("/sys/class/net/uplink").join(file), text).unwrap();
    }
    host
}

/// Returns the kubelet's root directory.
pub fn root(host: &Host) -> PathBuf {
    host.dir().join("kubelet")
}

/// Returns the kubelet's directory of device plugins.
pub fn plugins(host: &Host) -> PathBuf {
    root(host).join("device-plugins")
}

/// Returns a configuration with three resources: 1,000 devices, if the speed is 10 Gbit/s, 20 and 3.
pub fn three(host: &Host) -> Value {
    json!({"devices": {
        "domain": "example.org",
        "kubeletDir": root(host),
        "ingress": {"unitMbit": 10},
        "egress": {"unitMbit": 100, "capacityMbit": 2050},
        "tun": 3,
    }})
}

/// Returns a configuration of `tun` only.
pub fn tun(host: &Host) -> Value {
    json!({"devices": {"domain": "example.org", "kubeletDir": root(host), "tun": 3}})
}

/// Returns the names of the sockets in the directory of plugins.
pub fn sockets(host: &Host) -> Vec<String> {
    let entries = fs::read_dir(plugins(host)).unwrap().map(|it| it.unwrap());
    let sockets = entries.filter(|it| it.file_type().unwrap().is_socket());
    let mut names: Vec<_> = sockets
        .map(|it| it.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Runs an agent that ends by itself.
#[track_caller]
pub fn refused(host: &Host, config: &Value) -> Outcome {
    let outcome = Agent::run(host, config).run();
    assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
    outcome
}
