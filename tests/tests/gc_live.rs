//! cnitool gc beside pods that are hard to recognise as live: their runtime's cache is elsewhere, and
//! names, aliases or leases changed.

use std::fs;
use std::thread;

use serde_json::json;
use tests::leaks::{age, lease_of, with_a_pod};
use tests::{Host, Place as _, eventually};

/// Without lease and cached result, only the link can show that the pod lives.
#[test]
fn pod_whose_links_alias_was_replaced_stays() {
    let host = Host::new();
    let a = host.sandbox("a");
    let ipam = json!({"type": "static", "addresses": [{"address": "10.1.0.2/24"}]});
    let bridge = host.bridge().with("ipam", ipam).with("macspoofchk", true);
    let tool = host.tool();
    tool.configure("pods", &[bridge.config().clone()]);
    bridge.add(&a);
    let links = host.ip_json("link show type veth");
    let link = links[0]["ifname"].as_str().unwrap();
    host.ip(&format!("link set {link} alias db"));
    tool.run(&["gc", "pods"]).ok();
    assert!(a.pings("10.1.0.1"));
    host.ip(&format!("link set {link} down"));
    host.ip(&format!("link set {link} name primary"));
    host.ip("link set primary up");
    tool.run(&["gc", "pods"]).ok();
    assert!(eventually(|| a.pings("10.1.0.1")));
}

/// Only the tag of the second interface has hashes, because of the length of the interface's name.
#[test]
fn address_of_a_pod_with_another_interface_stays() {
    let host = Host::new();
    let a = host.sandbox("a");
    let (name, container) = ("n".repeat(52), "c".repeat(64));
    let bridge = host.bridge_v4().with("name", name.as_str());
    let tool = host.tool();
    tool.configure(&name, &[bridge.config().clone()]);
    for interface in ["eth0", "fifteen-letters"] {
        let call = bridge.call_for("ADD", &container).netns(a.path());
        call.ifname(interface).ok();
    }
    age(&host.lease_dir());
    a.ip("link delete eth0");
    tool.run(&["gc", &name]).run();
    assert_eq!(host.leases(&name).len(), 2);
}

/// A crash while a runtime wrote its cache.
#[test]
fn leftovers_of_an_attachment_with_a_torn_entry_in_the_cache_go() {
    let host = Host::new();
    let (tool, _live) = with_a_pod(&host);
    lease_of(&host, "gone", "10.1.0.200");
    fs::write(tool.results().join("pods-gone-eth0"), "{").unwrap();
    tool.run(&["gc", "pods"]).run();
    assert!(!host.leases("pods").contains_key("10.1.0.200"));
}

/// The container gets an address again while gc removes another one's.
#[test]
fn attachment_that_gets_a_lease_meanwhile_stays() {
    let host = Host::new();
    let [a, b, live] = ["a", "b", "live"].map(|name| host.sandbox(name));
    let bridge = host.bridge_v4().with("ipMasq", true);
    let (started, go_on) = (host.dir().join("started"), host.dir().join("go-on"));
    let wait = format!(
        "touch {}; until test -e {}; do sleep 0.05; done",
        started.display(),
        go_on.display()
    );
    let wait = format!("test $CNI_COMMAND/$CNI_CONTAINERID != DEL/a || {{ {wait}; }}");
    host.script("slow", &format!("cat >/dev/null; {wait}"));
    let tool = host.tool();
    tool.configure("pods", &[bridge.config().clone(), json!({"type": "slow"})]);
    for pod in [&a, &b, &live] {
        bridge.add(pod);
    }
    for pod in [&a, &b] {
        host.end(pod);
    }
    let lease = host.lease_dir().join("pods/10.1.0.3");
    fs::remove_file(lease).unwrap();
    age(&host.lease_dir());
    thread::scope(|scope| {
        let gc = scope.spawn(|| tool.run(&["gc", "pods"]).run());
        assert!(eventually(|| started.exists()));
        lease_of(&host, "b", "10.1.0.77");
        fs::write(&go_on, "").unwrap();
        gc.join().unwrap();
    });
    let leases = host.leases("pods");
    assert!(leases.keys().eq(["10.1.0.4", "10.1.0.77"]), "{leases:#?}");
}
