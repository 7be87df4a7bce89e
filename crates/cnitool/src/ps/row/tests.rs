//! Tests the lines of `cnitool ps` for fictitious nodes.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use host_local::Holder;
use nft::IpVersion;
use node::{Lease, OwnedElement};
use portmap::HostPort;
use runtime::Entry;
use serde_json::json;

use super::*;

fn cached(container: &str, more: &Value) -> Attached {
    let mut entry = json!({
        "kind": "cniCacheV1", "containerId": container, "ifName": "eth0", "networkName": "pods",
    });
    entry
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let entry: Entry = serde_json::from_value(entry).unwrap();
    Attached {
        attachment: entry.attachment().unwrap(),
        entry,
        is_alive: true,
        since: None,
    }
}

fn lease(container: Option<&str>, interface: Option<&str>) -> Lease {
    let interface = interface.map(|it| it.parse().unwrap());
    Lease {
        network: "pods".to_owned(),
        address: [10, 1, 0, 2].into(),
        holder: container.map(|it| Holder {
            container: it.parse().unwrap(),
            interface,
        }),
        path: "/var/lib/cni/networks/pods/10.1.0.2".into(),
        since: Some(SystemTime::UNIX_EPOCH),
    }
}

fn names(row: &Row) -> [Option<&str>; 3] {
    [&row.network, &row.container, &row.interface].map(Option::as_deref)
}

#[test]
fn traces_of_one_attachment_are_one_row() {
    let result = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.2/24"}]});
    let arguments = json!([["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "web-0"]]);
    let more = json!({"result": result, "cniArgs": arguments});
    let node = Node {
        attached: vec![cached("a", &more)],
        leases: vec![lease(Some("a"), Some("eth0"))],
        ..Node::default()
    };
    let [row] = Row::all(&node).try_into().unwrap();
    let row: Row = row;
    assert_eq!(names(&row), [Some("pods"), Some("a"), Some("eth0")]);
    assert_eq!(row.addresses, [IpAddr::from([10, 1, 0, 2])].into());
    assert_eq!(row.pod.unwrap().name, "web-0");
    assert_eq!(row.since, Some(SystemTime::UNIX_EPOCH));
    assert_eq!(row.known_by, [Trace::Cache, Trace::Lease].into());
}

#[test]
fn lease_without_interface_is_its_containers() {
    let node = Node {
        attached: vec![cached("a", &json!({}))],
        leases: vec![lease(Some("a"), None)],
        ..Node::default()
    };
    assert_eq!(Row::all(&node).len(), 1);
    let alone = Node {
        leases: vec![lease(Some("a"), None)],
        ..Node::default()
    };
    assert_eq!(names(&Row::all(&alone)[0]), [Some("pods"), Some("a"), None]);
    let torn = Node {
        leases: vec![lease(None, None)],
        ..Node::default()
    };
    assert_eq!(names(&Row::all(&torn)[0])[..2], [Some("pods"), None]);
}

/// Returns fields of a cache entry. The ADD had two port mappings and a list with only `plugin`.
fn asked_of(plugin: &Value) -> Value {
    let list = json!({"name": "pods", "plugins": [plugin]}).to_string();
    json!({"config": BASE64_STANDARD.encode(list), "capabilityArgs": {"portMappings": [
        {"HostPort": 8080, "ContainerPort": 80, "Protocol": "TCP", "HostIP": ""},
        {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "fd00::1"},
    ]}})
}

#[test]
fn ports_that_no_plugin_receives_are_not_listed() {
    for plugin in [
        json!({"type": "loopback"}),
        json!({"type": "portmap", "capabilities": {"portMappings": false}}),
    ] {
        let node = Node {
            attached: vec![cached("a", &asked_of(&plugin))],
            ..Node::default()
        };
        assert_eq!(Row::all(&node)[0].ports, BTreeSet::new(), "{plugin}");
    }
}

#[test]
fn ports_are_listed_once_in_any_notation() {
    let asked = asked_of(&json!({"type": "portmap", "capabilities": {"portMappings": true}}));
    let pod = IpAddr::from([10, 1, 0, 2]);
    let port = Forward {
        port: HostPort {
            version: IpVersion::V4,
            address: None,
            protocol: 6,
            port: 8080,
        },
        pod,
        container_port: 80,
    };
    let mut node = Node {
        attached: vec![cached("a", &asked)],
        ..Node::default()
    };
    node.firewall.elements = vec![OwnedElement {
        table: portmap::TABLE,
        owner: "cni:pods/a/eth0".to_owned(),
        port: Some(port),
        address: Some(pod),
    }];
    let [row] = Row::all(&node).try_into().unwrap();
    let row: Row = row;
    assert_eq!(
        row.ports,
        ["8080:80/tcp", "[fd00::1]:53:53/udp"]
            .map(str::to_owned)
            .into()
    );
}
