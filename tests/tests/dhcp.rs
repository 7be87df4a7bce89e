//! bridge with the reference's `dhcp`: a daemon leases from a server on the bridge.

use std::process::{Child, Command, Stdio};

use serde_json::json;
use tests::{Dnsmasq, Host, Place as _, REFERENCE, eventually};

/// The reference's DHCP daemon, which ends when this is dropped.
struct Daemon(Child);

impl Daemon {
    fn start(host: &Host) -> Self {
        let mut command = Command::new(format!("{REFERENCE}/dhcp"));
        command.args(["daemon", "-socketpath", SOCKET]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = command
            .spawn()
            .expect("install containernetworking-plugins");
        let socket = host.dir().join("dhcp.sock");
        assert!(eventually(|| socket.exists()));
        Self(daemon)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The process may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

const SOCKET: &str = "/run/test/dhcp.sock";

#[test]
fn an_address_is_leased_by_dhcp_over_the_new_link() {
    let host = Host::new();
    host.ip("link add cni0 type bridge");
    host.ip("address add 10.6.0.1/24 dev cni0");
    host.ip("link set cni0 up");
    let range = "--dhcp-range=10.6.0.50,10.6.0.60,255.255.255.0";
    let _server = Dnsmasq::start(&host, "cni0", &[range, "--dhcp-authoritative", "--no-ping"]);
    let _daemon = Daemon::start(&host);
    let a = host.sandbox("a");
    let network = host.bridge().with("isGateway", false);
    let network = network.with("ipam", json!({"type": "dhcp", "daemonSocketPath": SOCKET}));
    let result = network.add(&a);
    let address = result["ips"][0]["address"].as_str().unwrap();
    assert!(
        address.starts_with("10.6.0.5") || address.starts_with("10.6.0.60"),
        "{address}"
    );
    assert_eq!(a.addresses("eth0"), [address]);
    assert_eq!(a.default_gateways(), ["10.6.0.1"]);
    assert!(a.pings("10.6.0.1"));
    let mac = a.mac("eth0");
    assert_eq!(result["interfaces"][2]["mac"], mac);
    network.check(&a, &result).ok();
    network.clone().with("prevResult", result.clone()).del(&a);
    assert_eq!(host.links(), ["cni0", "lo"]);
    let again = network.add(&a);
    assert_eq!(
        a.mac("eth0"),
        mac,
        "the same attachment asks with the same MAC"
    );
    assert_eq!(
        again["ips"], result["ips"],
        "and so is given the same address"
    );
}
