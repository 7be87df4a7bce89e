//! portmap: a second ADD of an attachment with ports.

use std::fs;

use serde_json::{Value, json};
use tests::ports::rules;
use tests::traffic::tcp_by_port;
use tests::{Host, Network, Ports, Sandbox};

const RECORD: &str = "/run/cni/portmap/cni:pods:a:eth0";

/// Returns the rules and the record, which must not change.
fn all(host: &Host) -> [String; 2] {
    [rules(host), fs::read_to_string(RECORD).unwrap()]
}

fn unless_from(address: &str) -> Value {
    json!([format!("ip saddr != {address}")])
}

fn serves(host: &Host, port: u16, (pod, at): (&Sandbox, u16)) -> bool {
    tcp_by_port(host, &format!("127.0.0.1:{port}"), (pod, at)).is_some()
}

/// Attaches a pod with ports 8080 and 8081, and another one with 9090.
fn pods<'h>(host: &'h Host, ports: &Ports<'h>) -> (Network<'h>, Sandbox, Sandbox) {
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let portmap = ports.add(&a, &["8080:80", "8081:81"]);
    ports.add(&b, &["9090:80"]);
    (portmap, a, b)
}

#[test]
fn the_first_ones_ports_survive_a_second_add_that_is_refused() {
    let host = Host::new();
    let (portmap, a, b) = pods(&host, &host.ports());
    let before = all(&host);
    for asked in [&["8080:82", "9090:80"][..], &["9090:80"]] {
        let refusal = Ports::asking(&portmap, asked).on("ADD", &a).error();
        refusal.expect(11, &["cni:pods/b/eth0"]);
        assert_eq!(all(&host), before);
    }
    portmap.on("CHECK", &a).ok();
    assert!(serves(&host, 8080, (&a, 80)) && serves(&host, 8081, (&a, 81)));
    assert!(serves(&host, 9090, (&b, 80)));
    portmap.del(&a);
    assert!(!rules(&host).contains("cni:pods/a/"));
}

#[test]
fn the_first_ones_ports_come_back_where_a_second_add_fails_later() {
    let host = Host::new();
    let ports = host.ports().with("conditionsV4", unless_from("192.0.2.7"));
    let (portmap, a, _b) = pods(&host, &ports);
    let before = all(&host);
    host.read_only("/run/cni/localnet");
    let again = Ports::asking(&portmap, &["8080:82", "7070:80"]);
    let again = again.with("conditionsV4", unless_from("192.0.2.8"));
    let refusal = again.on("ADD", &a).error();
    refusal.expect(100, &["127.0.0.1"]);
    assert_eq!(all(&host), before);
}

#[test]
fn what_the_second_add_does_not_ask_for_goes_with_it() {
    let host = Host::new();
    let ports = host.ports().with("conditionsV4", unless_from("192.0.2.7"));
    let (portmap, a, b) = pods(&host, &ports);
    ports.forgotten(&b).ok();
    let again = Ports::asking(&portmap, &["8080:82"]);
    let again = again.with("conditionsV4", unless_from("192.0.2.8"));
    again.add(&a);
    again.on("CHECK", &a).ok();
    assert!(serves(&host, 8080, (&a, 82)) && !serves(&host, 8081, (&a, 81)));
    assert_eq!(rules(&host).matches("chain conditions-").count(), 1);
    // Another entry of the list, without the capability.
    let other = portmap.clone().with("runtimeConfig", json!({}));
    other.add(&a);
    other.on("CHECK", &a).ok();
    assert!(serves(&host, 8080, (&a, 82)));
    let none = Ports::asking(&portmap, &[]);
    none.on("CHECK", &a)
        .error()
        .expect(100, &["does not ask for"]);
    none.add(&a);
    none.on("CHECK", &a).ok();
    assert!(!serves(&host, 8080, (&a, 82)) && !rules(&host).contains("cni:"));
    again.add(&a);
    ports.forgotten(&a).ok();
    assert!(!rules(&host).contains("conditions-"), "{}", rules(&host));
    assert!(!rules(&host).contains("cni:"), "{}", rules(&host));
}

/// The second ADD uses the remaining rules if the record is missing, lost or truncated.
#[test]
fn the_second_add_finds_what_no_record_lists() {
    let host = Host::new();
    let losses: [fn(); 2] = [
        || fs::remove_file(RECORD).unwrap(),
        || fs::write(RECORD, "{").unwrap(),
    ];
    for (lose, asked) in losses.into_iter().zip([8080, 7070]) {
        let a = host.sandbox("a");
        let ports = host.ports();
        let portmap = ports.add(&a, &["8080:80", "8081:81"]);
        lose();
        Ports::asking(&portmap, &[&format!("{asked}:80")]).add(&a);
        assert!(serves(&host, asked, (&a, 80)) && !serves(&host, 8081, (&a, 81)));
        ports.forgotten(&a).ok();
        assert!(!rules(&host).contains("cni:"), "{}", rules(&host));
        ports.bridge().del(&a);
        a.remove();
    }
}
