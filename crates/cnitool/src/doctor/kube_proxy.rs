//! Checks kube-proxy's mode. In IPVS mode, a hostPort can receive packets for a Service.

use ipnetwork::IpNetwork;
use node::{Node, Source};
use serde_json::Value;

use super::edit;
use super::finding::{Finding, or_ok, some_of};

/// Reports kube-proxy's mode. In IPVS mode, also reports each plugin `portmap` whose `conditionsV4`
/// or `conditionsV6` have no condition about the destination address. Its hostPorts then match
/// packets to Services, too.
pub fn judge(node: &Node) -> Vec<Finding> {
    let Some(link) = node.link_called(IPVS_LINK) else {
        let ok = |mode| format!("its mode is {mode}: Services take precedence over hostPorts");
        return mode(node).map(ok).map(Finding::ok).into_iter().collect();
    };
    let services = node.addresses_of(link.index);
    let services = services.filter(|it| !it.is_link_local);
    let services: Vec<_> = services.map(|it| it.address).collect();
    let mut findings = Vec::new();
    let sources = node.configuration.sources();
    for source in sources.filter(|it| node::facts(&it.plugin.program).takes("portMappings")) {
        let families = FAMILIES.iter().filter(|it| services.iter().any(it.is_of));
        let open = families.filter(|it| {
            let mut conditions = source.list(it.key).iter().filter_map(Value::as_str);
            !conditions.any(|condition| condition.contains(it.word))
        });
        findings.extend(open.map(|it| exposed(source, it)));
    }
    let addresses = some_of(services.iter().map(IpNetwork::ip));
    let ok = format!("its mode is IPVS; Services have {addresses}");
    or_ok(findings, Some(ok))
}

/// Returns whether kube-proxy has links or rules on the node, so it is a node of Kubernetes.
pub fn is_there(node: &Node) -> bool {
    node.link_called(IPVS_LINK).is_some() || mode(node).is_some()
}

/// Returns the mode of kube-proxy if it has rules of its own.
fn mode(node: &Node) -> Option<&'static str> {
    match &node.firewall {
        it if it.has_table("kube-proxy") => Some("nftables"),
        it if it.has_chain("KUBE-SERVICES") => Some("iptables"),
        _ => None,
    }
}

fn exposed(source: Source<'_>, family: &Family) -> Finding {
    let (file, key) = (&source.file.name, family.key);
    let message = format!("its mode is IPVS, and portmap in {file} has no {key}");
    let mut conditions = source.list(key).to_vec();
    conditions.push(format!("{} != {}", family.word, family.range).into());
    let finding = Finding::problem(message).impact(format!(
        "The node has the addresses of Services on {IPVS_LINK}: packets to a Service on a port that \
         is also a hostPort go to that pod. Insert your range of Services."
    ));
    edit::give(finding, source, key, &conditions.into())
}

struct Family {
    is_of: fn(&IpNetwork) -> bool,
    key: &'static str,
    /// The nft expression for the destination address. doctor assumes that a condition of `portmap`
    /// with this expression excludes Services.
    word: &'static str,
    /// Example range of Services for the fix: the default of kubeadm (IPv4) or kind (IPv6).
    range: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family {
        is_of: IpNetwork::is_ipv4,
        key: "conditionsV4",
        word: "ip daddr",
        range: "10.96.0.0/12",
    },
    Family {
        is_of: IpNetwork::is_ipv6,
        key: "conditionsV6",
        word: "ip6 daddr",
        range: "fd00:10:96::/112",
    },
];

/// The link with the addresses of all Services, in IPVS mode.
const IPVS_LINK: &str = "kube-ipvs0";

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::tests::{levels, link, node};
    use super::*;

    fn with_ipvs(portmap: &str) -> Vec<Finding> {
        let list = format!(r#"{{"name": "pods", "plugins": [{{"type": "portmap"{portmap}}}]}}"#);
        let mut node = node(&[("pods.conflist", &list)]);
        node.links = vec![link(9, IPVS_LINK)];
        node.addresses = vec![netlink::Address {
            link: 9,
            address: "10.96.0.1/32".parse().unwrap(),
            is_tentative: false,
            is_duplicate: false,
            is_link_local: false,
            expires: false,
        }];
        judge(&node)
    }

    #[test]
    fn ipvs_needs_a_condition() {
        let findings = with_ipvs("");
        assert_eq!(levels(&findings), [Level::Problem]);
        assert!(
            findings[0]
                .fix
                .contains(r#""conditionsV4": ["ip daddr != 10.96.0.0/12"]"#)
        );
        let findings = with_ipvs(r#", "conditionsV4": ["ip daddr != 10.96.0.0/12"]"#);
        assert_eq!(levels(&findings), [Level::Ok]);
    }

    #[test]
    fn other_modes_are_known_by_their_tables() {
        let mut node = node(&[]);
        assert_eq!(judge(&node), []);
        node.firewall.chains = vec![nft::KernelChain {
            family: nft::Family::Ipv4,
            table: "nat".to_owned(),
            name: "KUBE-SERVICES".to_owned(),
            is_forward: false,
        }];
        assert!(judge(&node)[0].message.starts_with("its mode is iptables"));
    }
}
