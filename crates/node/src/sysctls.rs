//! Reads the kernel parameters (sysctls) on which the network of pods depends.

use std::collections::{BTreeMap, BTreeSet};

use attach::BRIDGE_NF_CALL;
use netns::Sysctl;
use rustix::fs::{StatVfsMountFlags, statvfs};

/// Returns the values of these parameters by name: forwarding, `route_localnet` and
/// `bridge-nf-call-*` of the node, and IPv4 forwarding of each of `links`. Omits parameters that
/// the kernel lacks.
pub(super) fn read(links: &BTreeSet<&str>) -> BTreeMap<String, String> {
    let ipv4 = Sysctl::new(&["net", "ipv4", "ip_forward"]);
    let ipv6 = Sysctl::ipv6("all", "forwarding");
    let localnet = Sysctl::ipv4("all", "route_localnet");
    let call = BRIDGE_NF_CALL.map(|it| Sysctl::new(&["net", "bridge", it]));
    let of_links = links.iter().map(|it| Sysctl::ipv4(it, "forwarding"));
    let all = [ipv4, ipv6, localnet].into_iter();
    let all = all.chain(call).chain(of_links);
    all.filter_map(|it| Some((it.key(), it.read().ok()?)))
        .collect()
}

/// Returns whether `/proc/sys` is mounted read-only.
pub(super) fn are_read_only() -> bool {
    statvfs("/proc/sys").is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::RDONLY))
}
