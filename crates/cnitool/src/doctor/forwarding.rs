//! Checks that the node forwards packets, and whether netfilter sees bridged packets.

use super::finding::{Finding, quoted, some_of};
use super::range::pod_networks;
use ipnetwork::IpNetwork;
use node::{Node, Source};

/// Checks each sysctl that a network needs.
pub fn judge(node: &Node) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (key, is_of) in FORWARDING {
        let routed = |source: &Source<'_>| {
            source.is_gateway() && pod_networks(node, *source).iter().any(is_of)
        };
        let bridges = node.configuration.sources().filter(routed);
        if let Some(bridge) = bridges
            .filter_map(Source::bridge)
            .max_by_key(|it| in_use(node, it))
        {
            findings.push(forwarding(node, key, bridge));
        }
    }
    findings.extend(bridges_that_do_not(node));
    findings.extend(bridged(node));
    findings
}

fn forwarding(node: &Node, key: &str, bridge: &str) -> Finding {
    match node.sysctls.value(key) {
        None => Finding::warning(SUBJECT, format!("{key} does not exist"))
            .impact("The kernel does not support this family, so pods cannot have its addresses."),
        Some("0") if in_use(node, bridge) => Finding::problem(SUBJECT, format!("{key} is 0"))
            .impact(format!(
                "Pods on {bridge} reach nothing beyond the node. It was 1 when they were attached: \
                 find what reset it, for example in /etc/sysctl.d."
            ))
            .fix(set(&[key])),
        Some("0") => Finding::ok(SUBJECT, format!("{key} is 0"))
            .impact(format!("The first ADD on {bridge} sets it.")),
        Some(value) => Finding::ok(SUBJECT, format!("{key} is {value}")),
    }
}

/// Finds bridges with another setting than the node.
fn bridges_that_do_not(node: &Node) -> Vec<Finding> {
    let is_node = node.sysctls.value("net.ipv4.ip_forward") == Some("1");
    let gateways = node
        .configuration
        .sources()
        .filter(|it| is_node && it.is_gateway());
    let keys = gateways.filter_map(Source::bridge).map(|bridge| {
        let part = bridge.replace('.', "/");
        (bridge, format!("net.ipv4.conf.{part}.forwarding"))
    });
    let mut findings = Vec::new();
    for (bridge, key) in keys {
        if in_use(node, bridge) && node.sysctls.value(&key) == Some("0") {
            let finding = Finding::problem(SUBJECT, format!("{key} is 0"))
                .impact(format!("Pods on {bridge} reach nothing beyond the node."))
                .fix(set(&[&key]));
            findings.push(finding);
        }
    }
    findings
}

/// Checks `br_netfilter` and its sysctls.
fn bridged(node: &Node) -> Option<Finding> {
    let wants = |source: &Source<'_>| {
        let is_on = source
            .key("bridgeNfCall")
            .and_then(serde_json::Value::as_bool);
        source.bridge().is_some() && is_on != Some(false)
    };
    let sources = node.configuration.sources().filter(wants);
    let bridges: Vec<_> = sources.filter_map(Source::bridge).collect();
    if bridges.is_empty() {
        return None;
    }
    let is = |key: &&&str, value| node.sysctls.value(key) == value;
    let impact = "Services and hostPorts do not work between pods of this node.";
    if BRIDGED.iter().any(|it| is(&it, None)) {
        let message = "the kernel module br_netfilter is not loaded";
        let finding = Finding::warning(SUBJECT, message).impact(impact);
        return Some(finding.fix(format!(
            "modprobe br_netfilter\necho br_netfilter >> {MODULES}"
        )));
    }
    let off = BRIDGED.iter().filter(|it| is(it, Some("0")));
    let off: Vec<_> = off.copied().collect();
    if off.is_empty() {
        return Some(Finding::ok(SUBJECT, "netfilter sees bridged packets"));
    }
    let message = format!("{} is 0", some_of(&off));
    if !bridges.iter().any(|it| in_use(node, it)) {
        return Some(Finding::ok(SUBJECT, message).impact("The first ADD sets it."));
    }
    Some(
        Finding::warning(SUBJECT, message)
            .impact(impact)
            .fix(set(&off)),
    )
}

/// Returns commands that set these sysctls now and at boot.
fn set(keys: &[&str]) -> String {
    let keys = keys.iter().map(|it| quoted(&format!("{it}=1")));
    let keys = keys.collect::<Vec<_>>().join(" ");
    format!("sysctl -w {keys}\nprintf '%s\\n' {keys} >> {SYSCTLS}")
}

/// Returns whether a pod is attached to the bridge.
fn in_use(node: &Node, bridge: &str) -> bool {
    let bridge = node.link_called(bridge);
    bridge.is_some_and(|it| node.ports(it.index).next().is_some())
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

/// A file that the node reads at boot. The last file by name that sets a sysctl takes precedence.
const SYSCTLS: &str = "/etc/sysctl.d/cni.conf";
const MODULES: &str = "/etc/modules-load.d/cni.conf";

const SUBJECT: &str = "sysctl";

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
        node.sysctls.0 = values.collect();
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
    }
}
