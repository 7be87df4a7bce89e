//! Checks whether pods reach other hosts: they need a default route, a gateway that exists, and
//! addresses that other hosts can answer.

use std::net::IpAddr;

use cni::{Attachment, json};
use ipnetwork::IpNetwork;
use node::{Attached, Node, Probe, Range, Source, is_looked_up};

use super::edit;
use super::finding::{Finding, Level};
use super::kube_proxy;

/// Reports networks whose pods have no gateway, no default route, or addresses to which other hosts
/// probably have no route. Reports only the first of these faults of a plugin. Reports nothing of
/// lists with plugins of other suites, which may add routes or masquerade.
pub fn judge(node: &Node) -> Vec<Finding> {
    let sources = node.configuration.sources();
    let known = sources.filter(|it| {
        let mut plugins = it.network.plugins.iter();
        plugins.all(|it| cni::role(&it.program).is_some())
    });
    let findings = known.filter_map(|it| {
        let finding = no_gateway(node, it).or_else(|| no_route(node, it));
        finding.or_else(|| own_address(node, it))
    });
    findings.collect()
}

/// Finds a default route by a gateway that nothing has: the node is not the gateway, and the bridge
/// has no port to other hosts.
fn no_gateway(node: &Node, source: Source<'_>) -> Option<Finding> {
    let bridge = source.bridge()?;
    let routes = source.ipam_routes()?;
    let mut routes = routes.iter();
    let is_needed = routes.any(|it| is_default(&it.dst) && it.gw.is_empty());
    let ranges = Range::all_of(source);
    let mut gateways = ranges.iter().filter_map(|it| Some(it.gateway()?.ip()));
    let is_there = |gateway: IpAddr| {
        let mut own = node.addresses.iter().map(|it| it.address.ip());
        let mut of_pods = node.alive().flat_map(Attached::addresses);
        own.any(|own| own == gateway) || of_pods.any(|pod| pod.ip() == gateway)
    };
    if source.is_gateway() || !is_needed || has_others(node, bridge) || gateways.any(is_there) {
        return None;
    }
    let (file, network) = (&source.file.name, source.name());
    let message =
        format!("{file}: pods of {network} get a default route, but nothing is the gateway");
    let impact = format!(
        "They reach nothing beyond {bridge}, which has no port to a router. The node is the gateway \
         with isGateway."
    );
    let finding = Finding::warning(message).impact(impact);
    Some(edit::give(finding, source, "isGateway", &true.into()))
}

/// Returns whether the bridge has a port that is not of this suite, such as the node's uplink.
fn has_others(node: &Node, bridge: &str) -> bool {
    node.link_called(bridge).is_some_and(|bridge| {
        let mut ports = node.ports(bridge.index);
        ports.any(|it| !it.alias.as_deref().is_some_and(Attachment::is_owner))
    })
}

/// Finds a network without routes whose gateway is the node. Reports only the network that runtimes
/// use, because further networks may be internal ones.
fn no_route(node: &Node, source: Source<'_>) -> Option<Finding> {
    let (file, network) = (&source.file.name, source.name());
    source.ipam_routes()?;
    let is_chosen = Level::of_file(node, file) == Level::Problem;
    let ipam = source.plugin.ipam()?;
    let is_decided =
        json::value(ipam, "routes").is_some() || source.plugin.key("isDefaultGateway").is_some();
    if !source.is_gateway() || !is_chosen || is_decided {
        return None;
    }
    let message = format!("{file}: pods of {network} get no default route");
    let finding = Finding::warning(message);
    let beyond = "They reach nothing beyond their own network.";
    if source.bridge().is_some() {
        let impact = format!("{beyond} If that is wanted, set isDefaultGateway to false.");
        let finding = finding.impact(impact);
        let key = "isDefaultGateway";
        return Some(edit::give(finding, source, key, &true.into()));
    }
    let impact = format!(
        r#"{beyond} Write "routes": [{{"dst": "0.0.0.0/0"}}] into ipam, or [] if that is wanted."#
    );
    Some(finding.impact(impact).fix(edit::open(&source.place())))
}

/// Finds pods whose packets leave the node with private addresses: no rule of the node masquerades
/// them. In a cluster of Kubernetes, another program may add routes to them.
fn own_address(node: &Node, source: Source<'_>) -> Option<Finding> {
    let is_decided = source.plugin.key("ipMasq").is_some();
    let mut probes = node.probes.iter();
    let probe =
        probes.find(|it| it.stage.network == source.name() && leaves_as_itself(node, it))?;
    if is_decided || !has_default_route(source, probe.stage.pod) || is_of_kubernetes(node) {
        return None;
    }
    let (file, network, pod) = (&source.file.name, source.name(), probe.stage.pod);
    let message = format!(
        "{file}: packets of {network} leave with the pods' own addresses, such as {}",
        pod.ip()
    );
    let impact = "Other hosts can answer only if they have a route to the pods. If they have one, set \
                  ipMasq to false.";
    let finding = Finding::warning(message).impact(impact);
    Some(edit::give(finding, source, "ipMasq", &true.into()))
}

/// Returns whether a pod's packet arrived at another host with the pod's private address as source,
/// which only hosts with a route to the pods can answer. Returns `false` if the node has no default
/// route, or the address is in the uplink's network.
fn leaves_as_itself(node: &Node, probe: &Probe) -> bool {
    let (stage, pod) = (&probe.stage, probe.stage.pod.ip());
    let mut defaults = node.routes.iter();
    let has_default = defaults.any(|it| {
        it.is_default() && is_looked_up(it.table) && it.destination.is_ipv4() == pod.is_ipv4()
    });
    let mut of_uplink = node.addresses_of(stage.uplink.index);
    let is_neighbour = of_uplink.any(|it| it.address.contains(pod));
    let trial = probe.trial.as_ref();
    trial.is_ok_and(|it| it.sender == Some(pod) && it.left_out.is_empty())
        && has_default
        && !is_neighbour
        && is_private(pod)
}

fn has_default_route(source: Source<'_>, pod: IpNetwork) -> bool {
    let routes = source.ipam_routes().unwrap_or_default();
    let routes = routes.iter().map(|it| it.dst.parse::<IpNetwork>());
    source.plugin.is_set("isDefaultGateway")
        || routes
            .flatten()
            .any(|it| it.prefix() == 0 && it.is_ipv4() == pod.is_ipv4())
}

fn is_default(destination: &str) -> bool {
    let parsed = destination.parse::<IpNetwork>();
    parsed.is_ok_and(|it| it.prefix() == 0)
}

/// Returns whether the address is private (RFC 1918), shared (RFC 6598) or unique local (RFC 4193).
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(it) => {
            let [first, second, ..] = it.octets();
            it.is_private() || first == 100 && second & 0xc0 == 64
        }
        IpAddr::V6(it) => it.is_unique_local(),
    }
}

fn is_of_kubernetes(node: &Node) -> bool {
    let mut attached = node.attached.iter();
    kube_proxy::is_there(node)
        || attached.any(|it| it.entry.arguments.cni_value("K8S_POD_NAME").is_some())
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::tests::{attached_at, levels, link, node};
    use super::*;

    /// Returns a node with the network `pods`, whose plugin has these keys and whose `ipam` section
    /// has these keys.
    fn with(keys: &str, ipam: &str) -> Node {
        let list = format!(r#"{{"name": "pods", "plugins": [{{{keys}, "ipam": {{{ipam}}}}}]}}"#);
        node(&[("pods.conflist", &list)])
    }

    const LEASED: &str = r#""type": "host-local", "subnet": "10.1.0.0/24""#;
    const DEFAULT: &str = r#", "routes": [{"dst": "0.0.0.0/0"}]"#;

    #[test]
    fn pods_without_a_route_are_reported_unless_they_are_meant_to_have_none() {
        let gateway = r#""type": "bridge", "isGateway": true"#;
        for (keys, ipam, is_reported) in [
            (gateway, LEASED.to_owned(), true),
            (r#""type": "ptp""#, LEASED.to_owned(), true),
            (gateway, format!("{LEASED}{DEFAULT}"), false),
            (gateway, format!(r#"{LEASED}, "routes": []"#), false),
            (
                gateway,
                format!(r#"{LEASED}, "routes": [{{"dst": "10.0.0.0/8"}}]"#),
                false,
            ),
            (
                r#""type": "bridge", "isGateway": true, "isDefaultGateway": false"#,
                LEASED.to_owned(),
                false,
            ),
            (r#""type": "bridge""#, LEASED.to_owned(), false),
            (gateway, r#""type": "dhcp""#.to_owned(), false),
            (r#""type": "weave-net""#, LEASED.to_owned(), false),
            (gateway, String::new(), false),
        ] {
            let findings = judge(&with(keys, &ipam));
            assert_eq!(findings.len(), usize::from(is_reported), "{keys} {ipam}");
        }
        let mut node = with(gateway, LEASED);
        node.configuration.files[0].name = "20.conflist".to_owned();
        let loopback = r#"{"name": "lo", "plugins": [{"type": "loopback"}]}"#;
        let first = node::File::parse("10.conflist", loopback.as_bytes());
        node.configuration.files.insert(0, first);
        assert_eq!(judge(&node), []);
    }

    #[test]
    fn gateway_may_be_a_router_a_pod_or_an_address_of_the_node() {
        let keys = r#""type": "bridge""#;
        let ipam = format!("{LEASED}{DEFAULT}");
        let mut node = with(keys, &ipam);
        assert_eq!(levels(&judge(&node)), [Level::Warning]);
        let router = attached_at("10.1.0.1/24", "", ["pods", "router"]);
        node.attached = vec![router];
        assert_eq!(judge(&node), []);
        node.attached.clear();

        let mut port = link(2, "eth0");
        port.master = Some(1);
        node.links = vec![link(1, "cni0"), port];
        assert_eq!(judge(&node), []);
        node.links[1].alias = Some("cni:pods/a/eth0".to_owned());
        assert_eq!(levels(&judge(&node)), [Level::Warning]);
        node.addresses = vec![netlink::Address {
            link: 1,
            address: "10.1.0.1/24".parse().unwrap(),
            is_tentative: false,
            is_duplicate: false,
            is_link_local: false,
            expires: false,
        }];
        assert_eq!(judge(&node), []);
        let elsewhere = r#", "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.9"}]"#;
        assert_eq!(judge(&with(keys, &format!("{LEASED}{elsewhere}"))), []);
    }

    #[test]
    fn shared_and_unique_local_addresses_are_private() {
        for (address, expected) in [
            ("10.1.0.2", true),
            ("100.64.0.1", true),
            ("100.128.0.1", false),
            ("198.51.100.1", false),
            ("fd00::1", true),
            ("2001:db8::1", false),
        ] {
            assert_eq!(is_private(address.parse().unwrap()), expected, "{address}");
        }
    }
}
