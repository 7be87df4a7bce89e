//! Kernel parameters.

use std::collections::{BTreeMap, BTreeSet};

use attach::BRIDGE_NF_CALL;
use netns::Sysctl;

/// Values by name, without parameters that the kernel lacks.
#[derive(Debug, Default)]
pub struct Sysctls(pub BTreeMap<String, String>);

impl Sysctls {
    pub(super) fn read(links: &BTreeSet<&str>) -> Self {
        let ipv4 = Sysctl::new(&["net", "ipv4", "ip_forward"]);
        let ipv6 = Sysctl::ipv6("all", "forwarding");
        let call = BRIDGE_NF_CALL.map(|it| Sysctl::new(&["net", "bridge", it]));
        let of_links = links.iter().map(|it| Sysctl::ipv4(it, "forwarding"));
        let localnet = Sysctl::ipv4("all", "route_localnet");
        let all = [ipv4, ipv6, localnet]
            .into_iter()
            .chain(call)
            .chain(of_links);
        let read = all.filter_map(|it| Some((it.key(), it.read().ok()?)));
        Self(read.collect())
    }

    /// Returns the value of a parameter by its name in sysctl(8).
    pub fn value(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}
