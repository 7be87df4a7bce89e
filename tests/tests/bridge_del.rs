//! bridge DEL: it succeeds unconditionally, removes everything, and leaves foreign objects alone.

use serde_json::{Value, json};
use tests::{Host, Place as _, eventually, warm_host};

#[test]
fn nothing_is_left_but_the_bridge_however_often_del_is_asked() {
    let (host, before, a) = warm_host(Host::bridge);
    let result = host.bridge().add(&a);
    let with_result = host.bridge().with("prevResult", result);
    with_result.del(&a);
    host.snapshot().assert_same_as(&before);
    assert_eq!(a.links(), ["lo"]);
    with_result.del(&a);
    host.bridge().del(&a);
    host.bridge().on("DEL", &a).netns("").ok();
    host.snapshot().assert_same_as(&before);
    assert_eq!(host.links(), ["cni0", "lo"]);
}

#[test]
fn del_succeeds_without_the_sandbox_in_any_form() {
    let (host, before, a) = warm_host(Host::bridge);
    let file = host.dir().join("plain");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    let delete = host.bridge().on("DEL", &a);
    for delete in [
        delete.clone().without("CNI_NETNS"),
        delete.clone().netns(""),
        delete.clone().netns("/run/netns/never-was"),
        delete.clone().netns(file),
        delete.clone().netns("/proc/self/ns/net"),
        delete.clone().netns("/proc/self/ns/mnt"),
        delete.clone().netns("/dev/null"),
    ] {
        host.bridge().add(&a);
        assert_eq!(delete.ok(), Value::Null);
        host.snapshot().assert_same_as(&before);
        assert_eq!(a.links(), ["lo"], "{delete:?}");
        assert_eq!(delete.ok(), Value::Null);
    }
}

#[test]
fn del_succeeds_after_the_sandbox_went() {
    let (host, before, a) = warm_host(Host::bridge);
    host.bridge().add(&a);
    a.remove();
    host.bridge().del(&a);
    host.snapshot().assert_same_as(&before);
    let b = host.sandbox("b");
    host.bridge().add(&b);
    b.unmount();
    host.bridge().del(&b);
    host.snapshot().assert_same_as(&before);
}

#[test]
fn del_needs_neither_bridge_nor_lease() {
    let host = Host::new();
    let a = host.sandbox("a");
    let before = host.snapshot();
    host.bridge().del(&a);
    host.snapshot().assert_same_as(&before);
    host.bridge().add(&a);
    host.ip("link delete cni0");
    std::fs::remove_dir_all(host.lease_dir().join("pods")).unwrap();
    host.bridge().del(&a);
    assert_eq!(host.links(), ["lo"]);
}

#[test]
fn del_with_the_hosts_own_namespace_leaves_the_hosts_links() {
    let host = Host::new();
    host.ip("link add eth0 type veth peer name eth0-peer");
    host.ip("address add 198.51.100.1/24 dev eth0");
    host.ip("link set eth0 up");
    let a = host.sandbox("a");
    let before = host.snapshot();
    for path in ["/proc/self/ns/net", "/proc/thread-self/ns/net"] {
        host.bridge().on("DEL", &a).netns(path).ok();
        host.snapshot().assert_same_as(&before);
    }
}

#[test]
fn add_with_the_hosts_own_namespace_changes_nothing() {
    let host = Host::new();
    let a = host.sandbox("a");
    let before = host.snapshot();
    host.bridge()
        .on("ADD", &a)
        .netns("/proc/self/ns/net")
        .error()
        .expect(8, &[]);
    host.snapshot().assert_same_as(&before);
}

#[test]
fn del_keeps_a_foreign_link_in_the_sandbox() {
    let (host, _, a) = warm_host(Host::bridge);
    host.ip("link add strange type veth peer name eth0 netns a");
    host.bridge().del(&a);
    assert!(a.has_link("eth0") && host.has_link("strange"));
}

#[test]
fn del_of_one_attachment_leaves_the_others() {
    let (host, before, a) = warm_host(Host::bridge);
    let b = host.sandbox("b");
    let network = host.bridge();
    network.add(&a);
    network.on("ADD", &a).ifname("eth1").ok();
    network.add(&b);
    network.del(&a);
    assert_eq!(a.links(), ["eth1", "lo"]);
    assert!(b.pings("10.1.0.1") && b.pings("fd00:1::1"));
    assert_eq!(host.leases("pods").len(), 4);
    network.on("DEL", &a).ifname("eth1").ok();
    network.del(&b);
    host.snapshot().assert_same_as(&before);
}

#[test]
fn del_asks_the_delegate_even_if_there_is_no_link_any_more() {
    let (host, before, a) = warm_host(Host::bridge);
    host.bridge().add(&a);
    a.ip("link delete eth0");
    host.bridge().del(&a);
    host.snapshot().assert_same_as(&before);
}

#[test]
fn del_removes_the_link_even_if_the_delegate_fails() {
    let (host, before, a) = warm_host(Host::bridge);
    host.bridge().add(&a);
    host.script(
        "broken",
        "echo '{\"cniVersion\": \"1.0.0\", \"code\": 117, \"msg\": \"no\"}'; exit 1",
    );
    let network = host.bridge().with("ipam.type", "broken");
    network.on("DEL", &a).error().expect(117, &["no"]);
    assert!(!a.has_link("eth0"));
    assert_eq!(host.links(), ["cni0", "lo"]);
    host.bridge().del(&a);
    host.snapshot().assert_same_as(&before);
}

#[test]
fn what_the_reference_attached_is_detached() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.bridge();
    for with_result in [true, false] {
        let result = network.by_reference().add(&a);
        let network = if with_result {
            network.clone().with("prevResult", result)
        } else {
            network.clone()
        };
        network.del(&a);
        assert_eq!(a.links(), ["lo"]);
        assert_eq!(host.links(), ["cni0", "lo"]);
        assert!(host.leases("pods").is_empty());
    }
}

#[test]
fn the_reference_detaches_what_was_attached() {
    let (host, before, a) = warm_host(Host::bridge);
    let result = host.bridge().add(&a);
    host.bridge()
        .with("prevResult", result)
        .by_reference()
        .del(&a);
    host.snapshot().assert_same_as(&before);
    assert_eq!(a.links(), ["lo"]);
}

#[test]
fn the_reference_shares_a_bridge_with_us() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.bridge().by_reference().add(&a);
    let result = host.bridge().add(&b);
    assert_eq!(result["ips"][0]["address"], json!("10.1.0.3/24"));
    // The reference does not wait for duplicate address detection of the gateway's address.
    assert!(eventually(|| host
        .ip("-6 address show dev cni0 tentative")
        .is_empty()));
    assert!(a.pings("10.1.0.3") && b.pings("fd00:1::2") && b.pings("fd00:1::1"));
}

/// The reference made the victim's pair, so no alias protects it.
#[test]
fn sandbox_that_copies_the_indices_of_another_pair_cannot_have_it_deleted() {
    let host = Host::new();
    let (victim, evil) = (host.sandbox("a"), host.sandbox("b"));
    let result = host.bridge().by_reference().add(&victim);
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    let inside = &victim.link("eth0")["ifindex"];
    let outside = &host.link(port)["ifindex"];
    evil.ip(&format!(
        "link add eth0 index {inside} type veth peer name p index {outside}"
    ));
    host.bridge().del(&evil);
    assert!(victim.pings("10.1.0.1"));
    host.bridge().del(&victim);
    assert!(!host.links().contains(&port.to_owned()));
}

/// Another program may give any link the name, for example a network card that the kernel refuses
/// to delete.
#[test]
fn link_of_another_kind_with_the_name_of_the_hosts_end_is_left_alone() {
    let (host, _, a) = warm_host(Host::bridge);
    let result = host.bridge().add(&a);
    let name = result["interfaces"][1]["name"].as_str().unwrap();
    host.ip(&format!("link delete {name}"));
    host.ip(&format!("link add {name} type ifb"));
    host.bridge().del(&a);
    assert!(host.has_link(name));
    host.ip(&format!("link delete {name}"));
    host.ip(&format!("link set lo name {name}"));
    let delete = host.bridge().on("DEL", &a).run();
    assert_eq!(delete.ok(), Value::Null);
    assert!(delete.stderr.contains(name), "{}", delete.stderr);
    assert!(host.has_link(name) && host.leases("pods").is_empty());
}
