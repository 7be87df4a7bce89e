//! host-device: the device moves into the sandbox, and always comes back as it was.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tests::{Host, Network, Place as _, Removal, Sandbox};

/// The record of the attachment of a sandbox.
fn record(sandbox: &Sandbox) -> String {
    format!("/run/cni/host-device/cni:pods:{}:eth0", sandbox.name())
}

/// Runs ADD in a sandbox, and checks that it has the device.
fn added<'h>(host: &'h Host, network: &Network<'h>, name: &str) -> (Sandbox, Value) {
    let a = host.sandbox(name);
    let result = network.add(&a);
    assert!(!host.has_link("ens5"));
    assert_eq!(a.links(), ["eth0", "lo"]);
    (a, result)
}

#[test]
fn add_moves_the_device_and_del_returns_it_as_it_was() {
    let host = Host::new();
    let network = host.nic();
    let before = host.snapshot();
    let (a, result) = added(&host, &network, "a");
    assert_eq!(a.addresses("eth0"), ["10.1.0.2/24"]);
    assert_eq!(a.default_gateways(), ["10.1.0.1"]);
    assert!(a.pings("10.1.0.1"));
    let interface = json!({"name": "eth0", "mac": "02:00:00:00:05:01", "sandbox": a.path()});
    assert_eq!(result["interfaces"], json!([interface]));
    assert_eq!(result["ips"][0]["interface"], 0);
    network.check(&a, &result).ok();
    network.del(&a);
    host.snapshot().assert_same_as(&before);
    assert!(host.leases("pods").is_empty());
    network.del(&a);
    host.snapshot().assert_same_as(&before);
}

#[test]
fn without_ipam_the_device_is_up_without_addresses() {
    let host = Host::new();
    let network = host.nic().without("ipam");
    let before = host.snapshot();
    let (a, result) = added(&host, &network, "a");
    assert_eq!(result.get("ips"), None);
    a.ip("address add 10.1.0.7/24 dev eth0");
    assert!(a.pings("10.1.0.1"));
    network.check(&a, &result).ok();
    network.del(&a);
    host.snapshot().assert_same_as(&before);
}

#[test]
fn ipv6_addresses_work_when_add_returns() {
    let host = Host::new();
    let network = host.nic().with_one_address();
    let (a, result) = added(&host, &network, "a");
    assert!(a.pings("fd00:1::1") && a.pings("10.1.0.1"));
    network.check(&a, &result).ok();
    network.del(&a);
}

/// Changes everything of the device that a process in the sandbox can change.
fn vandalize(a: &Sandbox) {
    a.ip("link set eth0 down");
    a.ip("link set eth0 name other");
    a.ip("link set other address 02:00:00:00:66:66 mtu 1300 txqueuelen 7 alias nothing");
    a.ip("link set other promisc on allmulticast on");
    a.ip("address flush dev other");
    a.ip("link add ens5 type veth peer name eth0");
}

#[test]
fn device_that_the_sandbox_changed_comes_back_as_it_was() {
    let host = Host::new();
    let network = host.nic();
    let before = host.snapshot();
    for (removal, name) in Removal::ALL.iter().zip(["a", "b", "c"]) {
        let (a, _) = added(&host, &network, name);
        vandalize(&a);
        match removal {
            Removal::Del => network.del(&a),
            Removal::DelForgotten => drop(network.on("DEL", &a).without("CNI_NETNS").ok()),
            Removal::Gc => drop(network.gc(&[]).ok()),
        }
        host.snapshot().assert_same_as(&before);
        assert_eq!(a.links(), ["ens5", "eth0", "lo"], "only the device leaves");
        a.remove();
    }
}

#[test]
fn gc_returns_only_devices_of_unlisted_attachments() {
    let host = Host::new();
    let network = host.nic();
    let before = host.snapshot();
    let (a, result) = added(&host, &network, "a");
    network.gc(&[&a]).ok();
    network.check(&a, &result).ok();
    network.clone().with("name", "others").gc(&[]).ok();
    network.check(&a, &result).ok();
    network.gc(&[]).ok();
    host.snapshot().assert_same_as(&before);
}

#[test]
fn gc_keeps_the_lease_of_an_unknown_sandbox_alone() {
    let host = Host::new();
    let network = host.nic();
    let before = host.snapshot();
    host.ip("link add ens6 type veth peer name other");
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    // The kernel may give this number to another namespace later.
    host.ip("netns set a 7");
    let inhabitant = a.inhabitant();
    let add = network.call("ADD").container("a").ifname("eth0");
    add.netns(inhabitant.netns()).ok();
    network.clone().with("device", "ens6").add(&b);
    drop(inhabitant);
    b.remove();
    assert!(tests::eventually(|| !host.has_link("other")));
    network.gc(&[]).error().expect(100, &["may exist"]);
    assert!(host.leases("pods").keys().eq(["10.1.0.2"]) && a.pings("10.1.0.1"));
    network.del(&a);
    host.snapshot().assert_same_as(&before);
    assert!(host.leases("pods").is_empty());
}

#[test]
fn device_whose_name_is_taken_comes_back_and_gets_its_name_later() {
    let host = Host::new();
    let network = host.nic();
    let before = host.snapshot();
    let (a, _) = added(&host, &network, "a");
    host.ip("link add ens5 type bridge");
    let outcome = network.on("DEL", &a).run();
    outcome.ok();
    assert!(
        outcome.stderr.contains("a bridge link has its name"),
        "{outcome:?}"
    );
    let names = host.links();
    let now = names.iter().find(|it| it.starts_with("dev")).unwrap();
    assert_eq!(host.addresses(now), ["192.0.2.9/24", "2001:db8:5::9/64"]);
    assert_eq!(host.link(now)["mtu"], 1400);
    assert!(host.leases("pods").is_empty());
    let message = format!("which cni:pods/a/eth0 had, is on the host as {now}");
    host.tool()
        .doctor()
        .expect("warning", "device", &[&message]);
    network.gc(&[]).ok();
    assert!(host.has_link(now), "the name is still taken");
    let refusal = network.on("ADD", &host.sandbox("b")).error();
    assert!(
        refusal.mentions("ens5 is another link than the device of that name"),
        "{refusal:?}"
    );
    host.ip("link delete ens5");
    // udev does so for the name that it would have given to the device.
    host.ip(&format!("link property add dev {now} altname ens5"));
    network.gc(&[]).ok();
    host.snapshot().assert_same_as(&before);
}

#[test]
fn device_that_the_host_renamed_after_its_return_gets_its_name_later() {
    let host = Host::new();
    let network = host.nic();
    let before = host.snapshot();
    let (a, _) = added(&host, &network, "a");
    host.ip("link add ens5 type bridge");
    network.del(&a);
    let names = host.links();
    let now = names.iter().find(|it| it.starts_with("dev")).unwrap();
    host.ip(&format!("link set {now} down"));
    host.ip(&format!("link set {now} name lan0"));
    host.ip("link delete ens5");
    network.gc(&[]).ok();
    host.snapshot().assert_same_as(&before);
}

#[test]
fn second_add_names_the_holder() {
    let host = Host::new();
    let network = host.nic();
    let (a, _) = added(&host, &network, "a");
    let b = host.sandbox("b");
    let by_mac = network.clone().without("device");
    let by_mac = by_mac.with("hwaddr", "02:00:00:00:05:01");
    for network in [&network, &by_mac] {
        let refusal = network.on("ADD", &b).error();
        let holder = format!("cni:pods/a/eth0 has it in {}", a.path().display());
        assert!(refusal.mentions(&holder), "{refusal:?}");
    }
    assert_eq!(host.leases("pods").len(), 1);
    network.on("ADD", &a).error();
    network.del(&b);
    network.del(&a);
    by_mac.add(&b);
    assert_eq!(b.links(), ["eth0", "lo"]);
    by_mac.del(&b);
    assert!(host.has_link("ens5"));
}

#[test]
fn concurrent_adds_leave_the_device_to_one_of_them() {
    let host = Host::new();
    let network = host.nic().without("ipam");
    let before = host.snapshot();
    let pods = ["a", "b", "c", "d"].map(|it| host.sandbox(it));
    let outcomes = tests::at_once(&pods, |pod| network.on("ADD", pod).run().status.success());
    assert_eq!(outcomes.iter().filter(|it| **it).count(), 1, "{outcomes:?}");
    let records = fs::read_dir("/run/cni/host-device").unwrap().count();
    assert_eq!(records, 1);
    for pod in &pods {
        network.del(pod);
    }
    host.snapshot().assert_same_as(&before);
}

#[test]
fn concurrent_adds_of_one_attachment_leave_the_device_in_its_sandbox() {
    let host = Host::new();
    let network = host.nic().without("ipam");
    let a = host.sandbox("a");
    let outcomes = tests::at_once(&[0; 4], |_| network.on("ADD", &a).run().status.success());
    assert_eq!(outcomes.iter().filter(|it| **it).count(), 1, "{outcomes:?}");
    assert_eq!(a.links(), ["eth0", "lo"]);
    network.del(&a);
    assert_eq!(host.addresses("ens5"), ["192.0.2.9/24", "2001:db8:5::9/64"]);
}

#[test]
fn failed_add_returns_the_device() {
    let host = Host::new();
    let network = host.nic();
    let before = host.snapshot();
    let a = host.sandbox("a");
    // `late` gets the link, as `dhcp` does.
    host.script("late", "exit 1");
    for ipam in [
        json!({"type": "late"}),
        json!({"type": "static", "addresses": []}),
        json!({"type": "static", "addresses": [{"address": "10.1.0.9/24"}],
            "routes": [{"dst": "10.9.0.0/16", "gw": "198.51.100.1"}]}),
    ] {
        network.clone().with("ipam", ipam).on("ADD", &a).error();
        host.snapshot().assert_same_as(&before);
        assert_eq!(a.links(), ["lo"]);
    }
}

#[test]
fn ipam_plugin_that_needs_the_link_gets_it_up() {
    let host = Host::new();
    let log = host.dir().join("link");
    let script = format!(
        "[ $CNI_COMMAND = ADD ] || exit 0\nnsenter --net=$CNI_NETNS ip link show eth0 >{}\n\
         echo '{{\"cniVersion\": \"1.0.0\", \"ips\": [{{\"address\": \"10.1.0.9/24\"}}]}}'",
        log.display()
    );
    host.script("late", &script);
    let network = host.nic().with("ipam", json!({"type": "late"}));
    let (a, result) = added(&host, &network, "a");
    let seen = fs::read_to_string(log).unwrap();
    assert!(seen.contains(",UP"), "{seen}");
    assert!(a.pings("10.1.0.1"));
    network.check(&a, &result).ok();
    network.del(&a);
    assert!(host.has_link("ens5"));
}

#[test]
fn links_of_the_host_itself_and_of_attachments_stay() {
    let host = Host::new();
    let network = host.nic();
    let b = host.sandbox("b");
    let bridged = host.bridge().with("name", "bridged");
    let ranges = json!([[{"subnet": "10.8.0.0/24"}]]);
    let result = bridged.with("ipam.ranges", ranges).add(&b);
    let end = result["interfaces"][1]["name"].as_str().unwrap();
    let a = host.sandbox("a");
    for (device, reason) in [
        ("lo", "it is a loopback link"),
        ("cni0", "it is a bridge link"),
        (end, "is the host's end of cni:bridged/b/eth0"),
        ("ens6", "the host has no link ens6 (`device`)"),
    ] {
        let refusal = network.clone().with("device", device).on("ADD", &a).error();
        assert!(refusal.mentions(reason), "{device}: {refusal:?}");
        assert_eq!(a.links(), ["lo"]);
    }
    let before = host.snapshot();
    a.ip("link add eth0 type veth peer name eth1");
    let refusal = network.on("ADD", &a).error();
    assert!(
        refusal.mentions("has an interface eth0 already"),
        "{refusal:?}"
    );
    host.snapshot().assert_same_as(&before);
}

#[test]
fn virtual_link_that_is_deleted_with_its_sandbox_releases_its_address() {
    let host = Host::new();
    let network = host.nic();
    let (a, _) = added(&host, &network, "a");
    a.remove();
    assert!(tests::eventually(|| !host.has_link("switch")));
    let outcome = network.on("DEL", &a).run();
    outcome.ok();
    assert!(
        outcome.stderr.contains("it was a virtual link"),
        "{outcome:?}"
    );
    assert!(host.leases("pods").is_empty());
    assert!(!Path::new(&record(&a)).exists());
    // The operator makes it again.
    host.nic().add(&host.sandbox("b"));
}

#[test]
fn port_of_a_bridge_is_one_again() {
    let host = Host::new();
    let network = host.nic();
    host.ip("link add br0 type bridge");
    host.ip("link set ens5 master br0");
    let before = host.snapshot();
    let (a, _) = added(&host, &network, "a");
    network.del(&a);
    host.snapshot().assert_same_as(&before);
}

#[test]
fn check_reports_what_is_missing() {
    let host = Host::new();
    let network = host.nic();
    let (a, result) = added(&host, &network, "a");
    for (break_it, repair, difference) in [
        (
            "link set eth0 down",
            "link set eth0 up",
            "eth0 in the sandbox is down",
        ),
        (
            "address delete 10.1.0.2/24 dev eth0",
            "address add 10.1.0.2/24 dev eth0",
            "eth0 lacks address 10.1.0.2/24",
        ),
        (
            "link set eth0 address 02:00:00:00:66:66",
            "link set eth0 address 02:00:00:00:05:01",
            "eth0 has MAC 02:00:00:00:66:66, not 02:00:00:00:05:01",
        ),
    ] {
        a.ip(break_it);
        let refusal = network.check(&a, &result).error();
        assert!(refusal.mentions(difference), "{refusal:?}");
        a.ip(repair);
    }
}

#[test]
fn check_reports_another_link_and_none() {
    let host = Host::new();
    let network = host.nic();
    let (a, result) = added(&host, &network, "a");
    a.ip("link set eth0 down");
    a.ip("link set eth0 name eth1");
    a.ip("link add eth0 type bridge");
    let refusal = network.check(&a, &result).error();
    assert!(
        refusal.mentions("eth0 in the sandbox is not ens5"),
        "{refusal:?}"
    );
    a.ip("link delete eth0");
    let refusal = network.check(&a, &result).error();
    assert!(
        refusal.mentions("eth0 in the sandbox is gone"),
        "{refusal:?}"
    );
}
