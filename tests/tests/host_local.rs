//! host-local: leased addresses, their holders, and their release.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::thread;

use serde_json::{Value, json};
use tests::{Host, Network, Sandbox};

fn address(result: &Value) -> String {
    result["ips"][0]["address"].as_str().unwrap().to_owned()
}

/// Runs ADDs for containers of these names, in order.
fn addresses<const N: usize>(network: &Network<'_>, containers: [&str; N]) -> [String; N] {
    containers.map(|id| address(&lease(network, id)))
}

fn lease(network: &Network<'_>, container: &str) -> Value {
    network.call_for("ADD", container).ok()
}

#[test]
fn a_lease_has_address_gateway_routes_and_dns() {
    let host = Host::new();
    let resolv = host.dir().join("resolv.conf");
    fs::write(
        &resolv,
        "domain pods.test\nnameserver 192.0.2.53\nsearch a.test b.test\noptions ndots:5\n",
    )
    .unwrap();
    let network = host.host_local().with("ipam.resolvConf", resolv.to_str());
    let network = network.with(
        "ipam.routes",
        json!([{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.1.0.9"}]),
    );
    let result = lease(&network, "c1");
    assert_eq!(
        result["ips"],
        json!([{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}])
    );
    assert_eq!(
        result["routes"],
        json!([{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.1.0.9"}])
    );
    assert_eq!(result["dns"]["domain"], "pods.test");
    assert_eq!(result["dns"]["nameservers"], json!(["192.0.2.53"]));
    assert_eq!(result["dns"]["search"], json!(["a.test", "b.test"]));
    assert_eq!(result["dns"]["options"], json!(["ndots:5"]));
}

#[test]
fn a_lease_is_a_file_that_names_its_holder() {
    let host = Host::new();
    lease(&host.host_local(), "c1");
    let dir = host.lease_dir().join("pods");
    assert_eq!(
        fs::read_to_string(dir.join("10.1.0.2")).unwrap(),
        "c1\r\neth0"
    );
    assert_eq!(
        fs::read_to_string(dir.join("last_reserved_ip.0")).unwrap(),
        "10.1.0.2"
    );
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(dir.join("10.1.0.2")), 0o600);
    assert_eq!(mode(dir), 0o755);
}

#[test]
fn leases_of_ipv6_keep_their_colons() {
    let host = Host::new();
    let network = host.host_local_in(&json!({"subnet": "fd00:1::/64"}));
    assert_eq!(
        addresses(&network, ["c1", "c2"]),
        ["fd00:1::2/64", "fd00:1::3/64"]
    );
    let leases = host.leases("pods");
    assert_eq!(
        leases.keys().collect::<Vec<_>>(),
        ["fd00:1::2", "fd00:1::3"]
    );
}

#[test]
fn leases_are_in_var_lib_cni_by_default() {
    let host = Host::new();
    let network = host.host_local().with("ipam.dataDir", Value::Null);
    lease(&network, "c1");
    let file = "/var/lib/cni/networks/pods/10.1.0.2";
    assert_eq!(fs::read_to_string(file).unwrap(), "c1\r\neth0");
}

#[test]
fn addresses_go_round_before_one_is_leased_again() {
    let host = Host::new();
    let network = host.host_local_in(&json!({"subnet": "10.1.0.0/29"}));
    assert_eq!(
        addresses(&network, ["c1", "c2"]),
        ["10.1.0.2/29", "10.1.0.3/29"]
    );
    network.call_for("DEL", "c1").ok();
    let later = addresses(&network, ["c3", "c4", "c5", "c6"]);
    assert_eq!(
        later,
        ["10.1.0.4/29", "10.1.0.5/29", "10.1.0.6/29", "10.1.0.2/29"]
    );
}

#[test]
fn the_error_of_a_full_range_has_its_size_and_the_held_addresses() {
    let host = Host::new();
    let network = host.host_local_in(
        &json!({"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.12"}),
    );
    addresses(&network, ["c1", "c2", "c3"]);
    let refusal = network.call_for("ADD", "c4").error();
    assert!(
        refusal.mentions("10.1.0.10") && refusal.mentions("3"),
        "{refusal:?}"
    );
    assert_eq!(host.leases("pods").len(), 3);
    network.call_for("DEL", "c2").ok();
    assert_eq!(addresses(&network, ["c4"]), ["10.1.0.11/24"]);
}

#[test]
fn a_full_second_set_gives_the_first_ones_address_back() {
    let host = Host::new();
    let sets = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64", "rangeStart": "fd00:1::5", "rangeEnd": "fd00:1::5"}]]);
    let network = host.host_local().with("ipam.ranges", sets);
    lease(&network, "c1");
    let before = host.snapshot();
    network.call_for("ADD", "c2").error();
    host.snapshot().assert_same_as(&before);
}

#[test]
fn ranges_of_a_set_are_used_one_after_another() {
    let host = Host::new();
    let set = json!([[
        {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.254"},
        {"subnet": "10.2.0.0/24", "rangeStart": "10.2.0.7", "rangeEnd": "10.2.0.7", "gateway": "10.2.0.9"},
    ]]);
    let network = host.host_local().with("ipam.ranges", set);
    assert_eq!(addresses(&network, ["c1"]), ["10.1.0.254/24"]);
    let second = lease(&network, "c2");
    assert_eq!(
        second["ips"][0],
        json!({"address": "10.2.0.7/24", "gateway": "10.2.0.9"})
    );
}

#[test]
fn a_range_ends_before_the_broadcast_address_by_default() {
    let host = Host::new();
    let network = host.host_local_in(&json!({"subnet": "10.1.0.0/30"}));
    assert_eq!(addresses(&network, ["c1"]), ["10.1.0.2/30"]);
    network.call_for("ADD", "c2").error();
    let whole =
        json!({"subnet": "10.3.0.0/24", "rangeStart": "10.3.0.255", "rangeEnd": "10.3.0.255"});
    assert_eq!(
        addresses(&host.host_local_in(&whole), ["c3"]),
        ["10.3.0.255/24"]
    );
    let first = json!({"subnet": "10.4.0.0/24", "rangeStart": "10.4.0.0", "rangeEnd": "10.4.0.0"});
    assert_eq!(
        addresses(&host.host_local_in(&first), ["c4"]),
        ["10.4.0.0/24"]
    );
}

#[test]
fn the_old_flat_form_comes_before_ranges() {
    let host = Host::new();
    let ipam = json!({
        "type": "host-local", "dataDir": host.lease_dir(),
        "subnet": "10.7.0.0/24", "rangeStart": "10.7.0.50", "rangeEnd": "10.7.0.60", "gateway": "10.7.0.254",
        "ranges": [[{"subnet": "fd00:7::/64"}]],
    });
    let result = lease(&host.host_local().with("ipam", ipam), "c1");
    assert_eq!(
        result["ips"][0],
        json!({"address": "10.7.0.50/24", "gateway": "10.7.0.254"})
    );
    assert_eq!(result["ips"][1]["address"], "fd00:7::2/64");
}

#[test]
fn keys_of_the_flat_form_without_a_subnet_do_nothing() {
    let host = Host::new();
    let network = host.host_local().with("cniVersion", "1.1.0");
    let network = network.with("ipam.gateway", "10.1.0.254");
    let network = network.with("ipam.exclude", json!(["10.1.0.2"]));
    assert_eq!(network.call("STATUS").ok(), Value::Null);
    let add = network.call_for("ADD", "c1").run();
    assert!(add.stderr.contains("gateway, exclude"), "{}", add.stderr);
    let ips = json!([{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}]);
    assert_eq!(add.ok()["ips"], ips);
}

#[test]
fn ranges_of_the_runtime_come_first_and_in_both_shapes() {
    let host = Host::new();
    for (id, ranges) in [
        ("c1", json!([[{"subnet": "10.8.0.0/24"}]])),
        ("c2", json!([{"subnet": "10.8.0.0/24"}])),
    ] {
        let network = host.host_local().with("runtimeConfig.ipRanges", ranges);
        let result = lease(&network, id);
        let leased = |index: usize| result["ips"][index]["address"].as_str().unwrap();
        assert!(
            leased(0).starts_with("10.8.0.") && leased(1).starts_with("10.1.0."),
            "{result}"
        );
    }
}

#[test]
fn a_second_add_of_the_same_attachment_is_an_error_with_the_reason() {
    let host = Host::new();
    let network = host.host_local();
    lease(&network, "c1");
    let before = host.snapshot();
    let refusal = network.call_for("ADD", "c1").error();
    assert!(
        refusal.mentions("c1") && refusal.mentions("10.1.0.2"),
        "{refusal:?}"
    );
    host.snapshot().assert_same_as(&before);
    let other_link = network.call_for("ADD", "c1").ifname("eth1").ok();
    assert_eq!(address(&other_link), "10.1.0.3/24");
}

#[test]
fn del_releases_by_attachment_whatever_the_ranges_are_now() {
    let host = Host::new();
    let network = host.host_local();
    addresses(&network, ["c1", "c2"]);
    network.call_for("ADD", "c1").ifname("eth1").ok();
    let moved = host.host_local_in(&json!({"subnet": "10.9.0.0/24"}));
    moved.call_for("DEL", "c1").ok();
    let left = host.leases("pods");
    assert_eq!(left.keys().collect::<Vec<_>>(), ["10.1.0.3", "10.1.0.4"]);
    moved.call_for("DEL", "c1").ok();
    network.call_for("DEL", "never-was").ok();
    assert_eq!(host.leases("pods"), left);
}

#[test]
fn del_succeeds_where_nothing_was_ever_leased() {
    let host = Host::new();
    let network = host.host_local();
    assert_eq!(network.call_for("DEL", "c1").ok(), Value::Null);
    assert_eq!(
        network.call_for("DEL", "c1").without("CNI_NETNS").ok(),
        Value::Null
    );
}

#[test]
fn read_only_leases_are_read_and_del_fails_only_for_a_holder() {
    let host = Host::new();
    let network = host.host_local();
    let result = lease(&network, "c1");
    lease(&network, "c2");
    network.call_for("DEL", "c2").ok();
    host.read_only(host.lease_dir());
    network.call_for("DEL", "c2").ok();
    let network = network.with("prevResult", result);
    network.call_for("CHECK", "c1").ok();
    let refusal = network.call_for("DEL", "c1").error();
    refusal.expect(100, &["10.1.0.2", "Read-only file system"]);
}

#[test]
fn check_compares_with_the_lease() {
    let host = Host::new();
    let network = host.host_local();
    let result = lease(&network, "c1");
    let sandbox = |id: &str| {
        network
            .clone()
            .with("prevResult", result.clone())
            .call_for("CHECK", id)
    };
    assert_eq!(sandbox("c1").ok(), Value::Null);
    let refusal = sandbox("c2").error();
    assert!(refusal.mentions("c2"), "{refusal:?}");
    network.call_for("DEL", "c1").ok();
    sandbox("c1").error();
}

#[test]
fn gc_releases_what_is_not_listed() {
    let host = Host::new();
    let network = host.host_local();
    let [a, b]: [Sandbox; 2] = ["a", "b"].map(|name| host.sandbox(name));
    for sandbox in [&a, &b] {
        network.add(sandbox);
    }
    network.clone().with("name", "other").add(&a);
    assert_eq!(network.gc(&[&a, &b]).ok(), Value::Null);
    assert_eq!(host.leases("pods").len(), 2);
    network.gc(&[&b]).ok();
    let left: Vec<_> = host.leases("pods").into_values().collect();
    assert_eq!(left, ["b\r\neth0"]);
    network.gc(&[]).ok();
    assert!(host.leases("pods").is_empty());
    assert_eq!(
        host.leases("other").len(),
        1,
        "another network's lease stays"
    );
}

#[test]
fn status_is_good_even_if_the_range_is_full() {
    let host = Host::new();
    let network = host.host_local_in(&json!({"subnet": "10.1.0.0/30"}));
    lease(&network, "c1");
    assert_eq!(
        network.with("cniVersion", "1.1.0").call("STATUS").ok(),
        Value::Null
    );
}

/// libcni passes no `runtimeConfig` with STATUS.
#[test]
fn status_is_good_where_the_runtime_will_send_the_ranges() {
    let host = Host::new();
    let network = host.host_local().with("cniVersion", "1.1.0");
    let network = network.with("ipam.ranges", json!([]));
    let none = "no range to lease from";
    network.call("STATUS").error().expect(7, &[none]);
    let told = network.with("capabilities", json!({"ipRanges": true}));
    assert_eq!(told.call("STATUS").ok(), Value::Null);
    told.call_for("ADD", "c1").error().expect(7, &[none]);
    let ranges = json!([[{"subnet": "10.7.0.0/24"}]]);
    let result = lease(&told.with("runtimeConfig.ipRanges", ranges), "c1");
    assert_eq!(address(&result), "10.7.0.2/24");
}

#[test]
fn status_has_code_50_if_no_lease_can_be_written() {
    let host = Host::new();
    let dir = host.dir().join("read-only");
    fs::create_dir(&dir).unwrap();
    host.read_only(&dir);
    let network = host.host_local().with("ipam.dataDir", dir.to_str());
    let newest = network.with("cniVersion", "1.1.0");
    newest
        .call("STATUS")
        .error()
        .expect(50, &[dir.to_str().unwrap()]);
    let refusal = newest.call_for("ADD", "c1").error();
    assert!(refusal.mentions(dir.to_str().unwrap()), "{refusal:?}");
}

#[test]
fn twenty_at_once_get_twenty_addresses() {
    let host = Host::new();
    let network = host.host_local();
    let ids: Vec<_> = (0..20).map(|number| format!("c{number}")).collect();
    let leased: BTreeSet<_> = thread::scope(|scope| {
        let network = &network;
        let running: Vec<_> = ids
            .iter()
            .map(|id| scope.spawn(move || address(&lease(network, id))))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(leased.len(), 20);
    assert_eq!(host.leases("pods").len(), 20);
}

#[test]
fn excluded_addresses_are_leased_only_on_request() {
    let host = Host::new();
    let range = json!({"subnet": "10.5.0.0/28", "exclude": ["10.5.0.4/30", "10.5.0.3"]});
    let network = host.host_local_in(&range);
    let pods = ["a", "b", "c"].map(|name| host.sandbox(name));
    let leased = pods
        .each_ref()
        .map(|pod| network.add(pod)["ips"][0]["address"].clone());
    assert_eq!(leased, ["10.5.0.2/28", "10.5.0.8/28", "10.5.0.9/28"]);
    let asked = host.sandbox("d");
    let asking = network.with("runtimeConfig", json!({"ips": ["10.5.0.5"]}));
    assert_eq!(asking.add(&asked)["ips"][0]["address"], "10.5.0.5/28");
}
