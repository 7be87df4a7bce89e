//! host-local: small subnets, and names that are too long for a file.

use serde_json::{Value, json};
use tests::{Host, Network, Place as _};

/// Such subnets have no address of the network or the broadcast, and a gateway only if the host is
/// the gateway.
#[test]
fn subnets_of_one_and_two_addresses_are_leased_whole() {
    let host = Host::new();
    let ip = |network: &Network<'_>, container: &str| {
        let result = network.call_for("ADD", container).ok();
        let ip = &result["ips"][0];
        (ip["address"].clone(), ip["gateway"].clone())
    };
    for (subnet, addresses) in [
        ("10.1.0.0/31", &["10.1.0.0/31", "10.1.0.1/31"][..]),
        ("10.1.0.7/32", &["10.1.0.7/32"]),
        ("fd00::/127", &["fd00::/127", "fd00::1/127"]),
        ("fd00::7/128", &["fd00::7/128"]),
    ] {
        let network = host.host_local_in(&json!({"subnet": subnet}));
        for (container, address) in ["a", "b"].iter().zip(addresses) {
            assert_eq!(ip(&network, container), (json!(address), Value::Null));
        }
        network
            .call_for("ADD", "more")
            .error()
            .expect(100, &["are held"]);
        network.gc(&[]).ok();
    }
    let network = host
        .host_local_in(&json!({"subnet": "10.1.0.0/31"}))
        .with("isGateway", true);
    assert_eq!(
        ip(&network, "c1"),
        (json!("10.1.0.0/31"), json!("10.1.0.1"))
    );
    network
        .call_for("ADD", "c2")
        .error()
        .expect(100, &["1 of 1 are held"]);
}

#[test]
fn pod_of_a_small_subnet_reaches_its_gateway() {
    let host = Host::new();
    let two = json!([[{"subnet": "10.1.0.0/31"}], [{"subnet": "fd00:1::/127"}]]);
    let one = json!([[{"subnet": "10.2.0.7/32", "gateway": "169.254.1.1"}]]);
    for (network, ranges, gateways) in [
        (host.bridge(), &two, &["10.1.0.1", "fd00:1::1"][..]),
        (host.ptp(), &two, &["10.1.0.1", "fd00:1::1"]),
        (
            host.ptp().with("ipam.routes", json!([])),
            &one,
            &["169.254.1.1"],
        ),
    ] {
        let network = network.with("ipam.ranges", ranges.clone());
        let pod = host.sandbox("a");
        let result = network.add(&pod);
        for gateway in gateways {
            assert!(pod.pings(gateway), "{gateway}: {result}");
        }
        network.check(&pod, &result).ok();
        network.del(&pod);
        pod.remove();
    }
}

/// No file can have a name of 256 bytes, so there is no lease, and DEL must not fail for ever.
#[test]
fn del_and_gc_succeed_for_a_name_that_is_too_long_for_a_file() {
    let host = Host::new();
    let long = "n".repeat(256);
    let pod = host.sandbox("a");
    for network in [host.host_local(), host.bridge(), host.ptp()] {
        let unnamed = network.clone().with("name", long.clone());
        unnamed.on("ADD", &pod).error();
        unnamed.del(&pod);
        unnamed.gc(&[]).ok();
        let add = network.on("ADD", &pod).container(&long).run();
        let del = network.on("DEL", &pod).container(&long);
        assert_eq!(del.ok(), Value::Null, "{add:?}");
        assert!(host.leases("pods").is_empty());
    }
}
