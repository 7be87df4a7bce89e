//! Results in every version of the specification, as snapshots.

use insta::assert_json_snapshot;
use serde_json::{Map, Value, json};
use tests::{Host, Network, Place as _};

/// Returns the result of an ADD in each version, with placeholders for the sandbox's path and the
/// host's MACs.
fn results(host: &Host, network: &Network<'_>) -> Value {
    let a = host.sandbox("a");
    let in_version = |version: &&str| {
        let network = network.clone().with("cniVersion", *version);
        let result = network.add(&a);
        let macs = host.ip_json("link show");
        let macs = macs.iter().filter_map(|link| link["address"].as_str());
        let mut text = result
            .to_string()
            .replace(a.path().to_str().unwrap(), "(sandbox)");
        for mac in macs {
            text = text.replace(&format!("{mac:?}"), "\"(mac)\"");
        }
        network.with("prevResult", result).del(&a);
        std::fs::remove_dir_all(host.lease_dir()).unwrap_or_default();
        (String::from(*version), serde_json::from_str(&text).unwrap())
    };
    let versions = [
        "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0",
    ];
    Value::Object(versions.iter().map(in_version).collect::<Map<_, _>>())
}

#[test]
fn results_of_bridge() {
    let host = Host::new();
    let routes = json!([
        {"dst": "0.0.0.0/0", "mtu": 1400, "advmss": 1300, "priority": 7},
        {"dst": "10.9.0.0/16", "gw": "10.1.0.9"},
        {"dst": "::/0"},
    ]);
    let network = host.bridge().with("ipam.routes", routes);
    let network = network.with(
        "dns",
        json!({"nameservers": ["192.0.2.53"], "search": ["pods.test"]}),
    );
    assert_json_snapshot!(results(&host, &network));
}

#[test]
fn results_of_ptp() {
    let host = Host::new();
    assert_json_snapshot!(results(&host, &host.ptp().with("mtu", 1400)));
}

#[test]
fn results_of_host_device() {
    let host = Host::new();
    assert_json_snapshot!(results(&host, &host.nic()));
}

#[test]
fn results_of_host_local() {
    let host = Host::new();
    let ranges = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]);
    let network = host.host_local().with("ipam.ranges", ranges);
    let network = network.with("ipam.routes", json!([{"dst": "0.0.0.0/0", "mtu": 1400}]));
    assert_json_snapshot!(results(&host, &network));
}

#[test]
fn results_of_static() {
    let host = Host::new();
    let network = host
        .fixed()
        .with("ipam.routes", json!([{"dst": "0.0.0.0/0", "mtu": 1400}]));
    let network = network.with("ipam.dns", json!({"nameservers": ["192.0.2.53"]}));
    assert_json_snapshot!(results(&host, &network));
}

#[test]
fn results_of_loopback() {
    let host = Host::new();
    assert_json_snapshot!(results(&host, &host.loopback()));
}

#[test]
fn a_result_of_any_version_is_taken_back() {
    let host = Host::new();
    let a = host.sandbox("a");
    for version in [
        "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0",
    ] {
        let network = host.bridge().with("cniVersion", version);
        let result = network.add(&a);
        assert_eq!(result["cniVersion"], version);
        let passed = host
            .loopback()
            .with("cniVersion", version)
            .with("prevResult", result.clone());
        assert_eq!(
            passed.add(&a),
            result,
            "a chained plugin passes it on as it is"
        );
        network.with("prevResult", result).del(&a);
        assert_eq!(a.links(), ["lo"]);
    }
}

#[test]
fn route_attributes_reach_the_kernel_and_pass_through_a_chain_of_every_version() {
    let host = Host::new();
    let a = host.sandbox("a");
    let route = json!({"dst": "10.9.0.0/16", "gw": "10.1.0.1", "mtu": 1400, "advmss": 1300, "priority": 7, "table": 100});
    for version in ["0.1.0", "0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let network = host.bridge().with("cniVersion", version);
        let network = network.with("ipam.routes", json!([route]));
        let result = network.add(&a);
        let routes = match version {
            "0.1.0" | "0.2.0" => &result["ip4"]["routes"],
            _ => &result["routes"],
        };
        assert_eq!(routes[0], route, "{version}");
        let kernel = a.ip("route show table 100");
        assert!(
            kernel.contains("10.9.0.0/16") && kernel.contains("metric 7"),
            "{version}: {kernel}"
        );
        assert!(
            kernel.contains("mtu 1400") && kernel.contains("advmss 1300"),
            "{version}: {kernel}"
        );
        for plugin in ["portmap", "bandwidth", "firewall"] {
            if plugin == "bandwidth" && version < "0.3.0" {
                continue; // bandwidth needs a version with interface lists.
            }
            let config = json!({"cniVersion": version, "name": "pods", "type": plugin, "prevResult": result});
            let invocation = host.plugin(plugin).verb("ADD").config(&config).sandbox(&a);
            assert_eq!(invocation.ok(), result, "{plugin} {version}");
        }
        network.with("prevResult", result).del(&a);
    }
}
