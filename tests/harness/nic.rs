//! A stand-in for a network card of the host, for tests of `host-device`: one end of a veth pair.

use serde_json::json;

use crate::{Host, Network, Place as _, eventually};

impl Host {
    /// Creates the card `ens5` with settings and addresses of its own, unless it exists, even in a
    /// sandbox. At its other end is `switch` with `10.1.0.1` and `fd00:1::1`. Returns the network
    /// `pods` that gives containers the card, with IPv4.
    pub fn nic(&self) -> Network<'_> {
        if !self.has_link("switch") {
            // No other host can have a duplicate address, so detection would only delay.
            self.set_sysctl("net/ipv6/conf/default/accept_dad", "0");
            self.ip(
                "link add ens5 address 02:00:00:00:05:01 mtu 1400 txqueuelen 500 type veth peer \
                 name switch",
            );
            self.ip("link set ens5 alias rack-5");
            for (address, link) in [
                ("192.0.2.9/24", "ens5"),
                ("2001:db8:5::9/64", "ens5"),
                ("10.1.0.1/24", "switch"),
                ("fd00:1::1/64", "switch"),
            ] {
                self.ip(&format!("address add {address} dev {link}"));
            }
            self.ip("link set ens5 up");
            self.ip("link set switch up");
            // The kernel notices a carrier in the background.
            assert!(eventually(|| self.link("ens5")["operstate"] == "UP"));
        }
        self.host_local()
            .with("type", "host-device")
            .with("device", "ens5")
            .with("ipam.routes", json!([{"dst": "0.0.0.0/0"}]))
    }
}
