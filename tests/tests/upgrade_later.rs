//! Files of a later release, in formats that this release does not know: no verb takes them for
//! files of its own format.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tests::ports::rules;
use tests::traffic::tcp_by_port;
use tests::{Host, Place as _, Sandbox};

const PORT: [&str; 1] = ["8080:80"];

/// Marks a file of JSON as one of a later format.
fn age(path: PathBuf) {
    let text = fs::read_to_string(&path).unwrap();
    let mut content: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(content["format"], 1, "{content}");
    content["format"] = json!(2);
    fs::write(path, content.to_string()).unwrap();
}

fn record(pod: &Sandbox) -> PathBuf {
    format!("/run/cni/portmap/cni:pods:{}:eth0", pod.name()).into()
}

/// ADD of another sandbox must not take the port over, and DEL finds the elements by their owner.
#[test]
fn a_port_with_a_later_record_stays_with_its_holder_until_its_del() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let ports = host.ports();
    let portmap = ports.add(&a, &PORT);
    age(record(&a));
    let is_served = || tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_some();
    let other = ports.attach(&b, &PORT);
    other.on("ADD", &b).error().expect(11, &["cni:pods/a/eth0"]);
    assert!(is_served());
    let result = portmap.config()["prevResult"].clone();
    portmap
        .check(&a, &result)
        .error()
        .expect(100, &["unreadable"]);
    portmap
        .on("RELOAD", &a)
        .error()
        .expect(100, &["unreadable"]);
    assert!(is_served());
    portmap.del(&a);
    assert!(!record(&a).exists());
    let rules = host.run("nft", &["list", "ruleset"]);
    assert!(
        !rules.contains("comment \"cni:pods/a/eth0\" : 10"),
        "{rules}"
    );
    other.add(&b);
}

#[test]
fn a_record_of_a_later_release_is_collected() {
    let host = Host::new();
    let a = host.sandbox("a");
    let portmap = host.ports().add(&a, &PORT);
    age(record(&a));
    portmap.gc(&[&a]).ok();
    assert!(record(&a).exists());
    portmap.gc(&[]).ok();
    assert!(!record(&a).exists());
    let rules = rules(&host);
    assert!(!rules.contains("cni:pods/a"), "{rules}");
}

/// The leases themselves have the reference's format, which never changes.
#[test]
fn an_index_of_a_later_release_is_rebuilt_from_the_leases() {
    let host = Host::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let network = host.host_local();
    network.add(&a);
    network.add(&b);
    let index = host.lease_dir().join(".host-local/pods");
    let of_b = index.join("records/b:eth0");
    let read = || serde_json::from_str::<Value>(&fs::read_to_string(&of_b).unwrap()).unwrap();
    // A lease does not name the request for which it was made.
    let mut before = read();
    for record in before.as_array_mut().unwrap() {
        let record = record.as_object_mut().unwrap();
        record.retain(|key, _| key != "sandbox" && key != "plugin");
    }
    // What the later release keeps there means something else.
    fs::write(&of_b, "[]").unwrap();
    network.add(&c);
    assert_eq!(
        fs::read_to_string(&of_b).unwrap(),
        "[]",
        "the index is trusted"
    );
    age(index.join("state"));
    network.del(&c);
    assert_eq!(read(), before);
    network.del(&b);
    network.del(&a);
    assert!(host.leases("pods").is_empty());
}

/// A record of `bandwidth` has a line for each direction.
#[test]
fn limits_of_a_later_record_are_refused_but_deleted() {
    let host = Host::new();
    let a = host.sandbox("a");
    let chain = tests::Chain::new(&host, &["ptp", "devices"]);
    let result = chain.add(&a).unwrap();
    let record = PathBuf::from("/run/cni/bandwidth/cni:pods:a:eth0");
    fs::write(&record, "both 20000000\n").unwrap();
    let place = chain.position("devices").unwrap();
    for verb in ["CHECK", "RELOAD"] {
        let refused = chain.call(place, verb, (&a, &result)).error();
        refused.expect(100, &["record"]);
    }
    chain.remove(tests::Removal::Del, (&a, &result)).unwrap();
    assert!(!record.exists());
}
