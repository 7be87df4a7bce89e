//! host-local: addresses from the node's pod CIDRs, in flannel's or an administrator's file.

use std::fs;

use serde_json::json;
use tests::{Host, Place as _};

const FLANNEL: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
                       FLANNEL_IPV6_SUBNET=fd00:244:1::1/64\nFLANNEL_MTU=1450\n";

#[test]
fn flannels_subnets_give_a_pod_an_address_of_each_family() {
    let host = Host::new();
    fs::create_dir_all("/run/flannel").unwrap();
    fs::write("/run/flannel/subnet.env", FLANNEL).unwrap();
    let ipam = json!({"type": "host-local", "subnet": "usePodCidr", "dataDir": host.lease_dir()});
    let network = host.bridge().with("ipam", ipam);
    let (a, b) = (host.sandbox("a"), host.sandbox("b"));
    let result = network.add(&a);
    assert_eq!(result["ips"][0]["address"], "10.244.1.2/24");
    assert_eq!(result["ips"][1]["address"], "fd00:244:1::2/64");
    network.add(&b);
    assert!(b.pings("10.244.1.2") && b.pings("fd00:244:1::2") && b.pings("10.244.1.1"));
    network.check(&a, &result).ok();
}

#[test]
fn a_missing_file_is_named_and_status_fails() {
    let host = Host::new();
    let a = host.sandbox("a");
    let file = "/run/pod-cidr";
    let ipam = json!({
        "type": "host-local", "subnet": "usePodCidr", "podCidrFile": file,
        "dataDir": host.lease_dir(),
    });
    let network = host.host_local().with("ipam", ipam);
    network.on("ADD", &a).error().expect(11, &[file]);
    let newest = network.clone().with("cniVersion", "1.1.0");
    newest.call("STATUS").error().expect(50, &[file]);
    network.del(&a);
    fs::write(file, "here it comes").unwrap();
    network.on("ADD", &a).error().expect(7, &[file, "here"]);
    fs::write(file, "10.244.3.0/24\n").unwrap();
    assert_eq!(network.add(&a)["ips"][0]["address"], "10.244.3.2/24");
    newest.call("STATUS").ok();
}
