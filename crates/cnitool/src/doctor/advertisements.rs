//! Checks that containers cannot change IPv6 routes by router advertisements.

use std::collections::BTreeMap;

use netns::Sysctl;
use node::Node;

use super::finding::{Finding, quoted};

/// Reports bridges that accept router advertisements although they are the gateway of pods, and a
/// read-only `/proc/sys`, where ADD cannot turn that off.
pub fn judge(node: &Node) -> Vec<Finding> {
    let gateways = node.configuration.sources().filter(|it| it.is_gateway());
    let bridges = gateways.filter_map(|it| node.link_called(it.bridge()?));
    let accepting = bridges.filter_map(|it| Some((it.name.as_str(), it.ipv6?.accept_ra)));
    let accepting: BTreeMap<_, _> = accepting.filter(|it| it.1 != 0).collect();
    let used = accepting.into_iter().filter(|it| node.is_in_use(it.0));
    let findings = used.map(|(name, value)| {
        let key = Sysctl::ipv6(name, "accept_ra").key();
        Finding::warning(format!("{key} is {value}"))
            .impact("A pod can change the node's IPv6 routes by router advertisements.")
            .fix(format!("sysctl -w {}", quoted(&format!("{key}=0"))))
    });
    let mut findings: Vec<_> = findings.collect();
    if node.has_read_only_sysctls {
        let finding = Finding::warning("/proc/sys is read-only").impact(
            "ADD cannot make new links ignore router advertisements: a pod can change the IPv6 routes of \
             other pods and of the node. Mount /proc/sys writable for the runtime.",
        );
        findings.push(finding);
    }
    findings
}
