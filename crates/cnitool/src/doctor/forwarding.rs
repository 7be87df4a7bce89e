//! Checks that the node forwards packets, whether netfilter sees bridged packets, and that containers
//! cannot change IPv6 routes by router advertisements.

use std::collections::{BTreeMap, BTreeSet};

use cni::Attachment;
use ipnetwork::IpNetwork;
use itertools::Itertools as _;
use netns::Sysctl;
use node::{Node, Source, pod_networks};

use super::finding::{Finding, quoted, some_of};

/// Checks the sysctls that networks need: forwarding by the node and by its bridges,
/// `bridge-nf-call-*` and `accept_ra`.
pub fn judge(node: &Node) -> Vec<Finding> {
    let mut findings = Vec::new();
    let sources = node.configuration.sources();
    let gateways: Vec<_> = sources.filter(|it| it.is_gateway()).collect();
    for (key, is_of) in FORWARDING {
        let is_routed = |it: &&Source<'_>| pod_networks(node, **it).iter().any(is_of);
        let routed = gateways.iter().filter(is_routed);
        let source = routed.max_by_key(|it| has_pods(node, **it));
        findings.extend(source.map(|it| forwarding(node, key, *it)));
    }
    for bridge in gateways.iter().filter_map(|it| it.bridge()) {
        let key = not_forwarding(node, bridge).filter(|_| node.is_in_use(bridge));
        findings.extend(key.map(|key| {
            Finding::problem(format!("{key} is 0"))
                .impact(format!("Pods on {bridge} reach nothing beyond the node."))
                .fix(set(&[&key]))
        }));
    }
    findings.extend(bridged(node));
    findings.extend(advertisements(node));
    findings
}

fn forwarding(node: &Node, key: &str, source: Source<'_>) -> Finding {
    let place = match source.bridge() {
        Some(bridge) => format!("on {bridge}"),
        None => format!("of {}", source.name()),
    };
    match node.sysctl(key) {
        None => Finding::warning(format!("{key} does not exist"))
            .impact("The kernel does not support this family, so pods cannot have its addresses."),
        Some("0") if has_pods(node, source) => Finding::problem(format!("{key} is 0"))
            .impact(format!(
                "Pods {place} reach nothing beyond the node. It was 1 when they were attached: \
                 find what reset it, for example in /etc/sysctl.d."
            ))
            .fix(set(&[key])),
        Some("0") => {
            Finding::ok(format!("{key} is 0")).impact(format!("The first ADD {place} sets it."))
        }
        Some(value) => Finding::ok(format!("{key} is {value}")),
    }
}

/// Returns the name of the link's sysctl `forwarding` if it is 0 although the node forwards IPv4
/// packets. Otherwise returns `None`.
pub fn not_forwarding(node: &Node, link: &str) -> Option<String> {
    let key = Sysctl::ipv4(link, "forwarding").key();
    let is_node = node.sysctl("net.ipv4.ip_forward") == Some("1");
    (is_node && node.sysctl(&key) == Some("0")).then_some(key)
}

/// Reports whether `br_netfilter` is loaded, and whether netfilter sees the frames of the bridges
/// whose networks need that. Otherwise, Services do not work between pods of the node. Returns
/// `None` if no network needs it.
fn bridged(node: &Node) -> Option<Finding> {
    let sources = node.configuration.sources().filter(|it| needs_frames(*it));
    let sources: Vec<_> = sources.filter(|it| it.bridge().is_some()).collect();
    let impact = "Services do not work between pods of this node.";
    if sources.is_empty() {
        return None;
    }
    if BRIDGED.iter().any(|it| node.sysctl(it).is_none()) {
        let message = "the kernel module br_netfilter is not loaded";
        let fix = format!("modprobe br_netfilter\necho br_netfilter >> {MODULES}");
        return Some(Finding::warning(message).impact(impact).fix(fix));
    }
    let is_unseen = |source: &&Source<'_>| {
        let bridge = source.bridge().and_then(|name| node.link_called(name));
        bridge.is_none_or(|it| node.sees_frames(it).contains(&false))
    };
    let unseen: Vec<_> = sources.iter().filter(is_unseen).collect();
    let mut used = unseen.iter().filter(|it| has_pods(node, ***it));
    Some(if let Some(source) = used.next() {
        unseen_bridge(node, source).impact(impact)
    } else if unseen.is_empty() {
        Finding::ok("netfilter sees bridged packets")
    } else {
        let bridges = unseen.iter().filter_map(|it| it.bridge());
        let bridges = some_of(bridges.collect::<BTreeSet<_>>());
        Finding::ok(format!("netfilter does not see frames of {bridges}"))
            .impact("The first ADD changes that.")
    })
}

/// Returns whether `bridge` makes netfilter see the frames of the network: its key `bridgeNfCall`
/// says so, or it is absent and the network has a gateway or masquerading.
fn needs_frames(source: Source<'_>) -> bool {
    match source.plugin.key("bridgeNfCall") {
        Some(value) => *value != false,
        None => source.is_gateway() || source.plugin.is_set("ipMasq"),
    }
}

/// Returns the finding for a bridge with pods whose frames netfilter does not see, with the command
/// that does what ADD would do.
fn unseen_bridge(node: &Node, source: &Source<'_>) -> Finding {
    let bridge = source.bridge().unwrap_or_default();
    let key = source.plugin.key("bridgeNfCall");
    if key.is_some_and(|it| *it == true || *it == "host") {
        let off = BRIDGED.iter().filter(|it| node.sysctl(it) == Some("0"));
        let off: Vec<_> = off.copied().collect();
        return Finding::warning(format!("{} is 0", some_of(&off))).fix(set(&off));
    }
    let flags = "nf_call_iptables 1 nf_call_ip6tables 1";
    let set = format!("ip link set {} type bridge {flags}", quoted(bridge));
    Finding::warning(format!("netfilter does not see frames of {bridge}")).fix(set)
}

/// Reports bridges that accept router advertisements although they are the gateway of pods, and a
/// read-only `/proc/sys`, where ADD cannot turn that off.
fn advertisements(node: &Node) -> Vec<Finding> {
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

/// Returns commands that set these sysctls to 1, now and at each boot.
pub fn set(keys: &[&str]) -> String {
    let mut keys = keys.iter().map(|it| quoted(&format!("{it}=1")));
    let keys = keys.join(" ");
    format!("sysctl -w {keys}\nprintf '%s\\n' {keys} >> {SYSCTLS}")
}

/// Returns whether the network has pods: its bridge has a port or, without a bridge, the host's end
/// of a veth pair is tagged with an attachment to the network.
fn has_pods(node: &Node, source: Source<'_>) -> bool {
    let network = &source.network.list.name;
    let is_of_network = |owner: &str| Attachment::is_owner_in(owner, network);
    match source.bridge() {
        Some(bridge) => node.is_in_use(bridge),
        None => node.host_links.of_owner(is_of_network).is_some(),
    }
}

type IsOf = fn(&IpNetwork) -> bool;

const FORWARDING: [(&str, IsOf); 2] = [
    ("net.ipv4.ip_forward", IpNetwork::is_ipv4),
    ("net.ipv6.conf.all.forwarding", IpNetwork::is_ipv6),
];

const BRIDGED: [&str; 2] = [
    "net.bridge.bridge-nf-call-iptables",
    "net.bridge.bridge-nf-call-ip6tables",
];

/// The file that sets the sysctls at boot. If several files set the same sysctl, the last one by
/// name takes precedence.
const SYSCTLS: &str = "/etc/sysctl.d/cni.conf";
const MODULES: &str = "/etc/modules-load.d/cni.conf";

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::tests::{levels, link, node};
    use super::*;

    const LIST: &str = r#"{"name": "pods", "plugins": [{"type": "bridge", "isGateway": true,
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}]}"#;

    fn judged(sysctls: &[(&str, &str)], ports: usize) -> Vec<Finding> {
        let mut node = node(&[("pods.conflist", LIST)]);
        let values = sysctls
            .iter()
            .map(|(key, value)| (format!("net.{key}"), (*value).to_owned()));
        node.sysctls = values.collect();
        node.links = vec![link(1, "cni0")];
        node.links.extend((0..ports).map(|_| {
            let mut port = link(2, "veth1");
            port.master = Some(1);
            port
        }));
        judge(&node)
    }

    const CALLED: [(&str, &str); 2] = [
        ("bridge.bridge-nf-call-iptables", "1"),
        ("bridge.bridge-nf-call-ip6tables", "1"),
    ];

    #[test]
    fn forwarding_that_is_off_matters_where_a_pod_is() {
        for (value, ports, level) in [
            ("1", 1, Level::Ok),
            ("0", 0, Level::Ok),
            ("0", 1, Level::Problem),
        ] {
            let [first, second] = CALLED;
            let findings = judged(&[("ipv4.ip_forward", value), first, second], ports);
            assert_eq!(levels(&findings), [level, Level::Ok], "{value} {ports}");
        }
        let [first, second] = CALLED;
        let own = ("ipv4.conf.cni0.forwarding", "0");
        let findings = judged(&[("ipv4.ip_forward", "1"), own, first, second], 1);
        assert_eq!(levels(&findings), [Level::Ok, Level::Problem, Level::Ok]);
        let key = "net.ipv4.conf.cni0.forwarding=1";
        assert_eq!(
            findings[1].fix,
            format!("sysctl -w {key}\nprintf '%s\\n' {key} >> /etc/sysctl.d/cni.conf")
        );
    }

    #[test]
    fn netfilter_without_bridged_packets_is_reported() {
        let forwards = ("ipv4.ip_forward", "1");
        let findings = judged(&[forwards], 0);
        assert_eq!(
            findings[1].fix,
            "modprobe br_netfilter\necho br_netfilter >> /etc/modules-load.d/cni.conf"
        );
        let off = [("bridge.bridge-nf-call-iptables", "0"), CALLED[1]];
        for (ports, level) in [(0, Level::Ok), (1, Level::Warning)] {
            let findings = judged(&[forwards, off[0], off[1]], ports);
            assert_eq!(levels(&findings), [Level::Ok, level]);
        }
        let findings = judged(&[forwards, off[0], off[1]], 1);
        let flags = "ip link set cni0 type bridge nf_call_iptables 1 nf_call_ip6tables 1";
        assert_eq!(findings[1].fix, flags);
    }
}
