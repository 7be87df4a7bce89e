//! portmap: its table in `nf_tables` after changes by other programs.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use serde_json::json;
use tests::ports::rules;
use tests::traffic::tcp_by_port;
use tests::{Host, Place as _, eventually};

/// An administrator runs `nft --echo chain … '{ policy drop; }'` on the wrong chain.
#[test]
fn a_policy_that_drops_is_found_by_check_and_repaired_by_add() {
    for chain in ["prerouting", "output", "postrouting", "martians"] {
        let host = Host::new();
        let outside = host.outside();
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        let portmap = host.ports().add(&a, &["8080:80"]);
        let policy = |policy: &str| {
            let change = format!("chain inet cni-portmap {chain} {{ policy {policy}; }}");
            host.run("nft", &[&change]);
        };
        policy("drop");
        let refusal = portmap.on("CHECK", &a).error();
        refusal.expect(
            100,
            &[&format!("chain {chain} of nf_tables table cni-portmap")],
        );
        host.ports().add(&b, &["8081:80"]);
        portmap.on("CHECK", &a).ok();
        let listed = rules(&host);
        assert!(!listed.contains("policy drop"), "{listed}");
        assert!(tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_some());
        assert!(tcp_by_port(&outside, "192.0.2.1:9000", (&host, 9000)).is_some());
    }
}

/// An administrator replaces a base chain by one that no hook calls.
#[test]
fn a_recreated_table_opens_no_port_without_its_conditions() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let conditions = json!(["ip saddr != 192.0.2.2"]);
    let restricted = host.ports().with("conditionsV4", conditions);
    let portmap = restricted.add(&a, &["8080:80"]);
    let asked = |port: u16, pod| {
        let target = format!("192.0.2.1:{port}");
        tcp_by_port(&outside, &target, (pod, 80)).is_some()
    };
    assert!(!asked(8080, &a));
    for change in ["delete", "add"] {
        host.run("nft", &[change, "chain", "inet", "cni-portmap", "output"]);
    }
    host.ports().add(&b, &["8081:80"]);
    assert!(asked(8081, &b) && !asked(8080, &a));
    portmap.on("CHECK", &a).error();
    portmap.on("RELOAD", &a).ok();
    portmap.on("CHECK", &a).ok();
    assert!(!asked(8080, &a));
    let inside = tcp_by_port(&host, "192.0.2.1:8080", (&a, 80));
    assert!(inside.is_some());
}

/// The kernel refuses a transaction that both wakes a table and adds a base chain to it.
#[test]
fn a_dormant_table_without_a_base_chain_is_repaired() {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    let ports = host.ports().with("cniVersion", "1.1.0");
    let ports = ports.with_bridge("cniVersion", "1.1.0");
    let portmap = ports.add(&a, &["8080:80"]);
    let damage = || {
        host.run("nft", &["delete chain inet cni-portmap postrouting"]);
        host.run("nft", &["add table inet cni-portmap { flags dormant; }"]);
        portmap.on("STATUS", &a).ok();
        portmap.on("CHECK", &a).error();
    };
    for verb in ["RELOAD", "ADD"] {
        damage();
        portmap.on(verb, &a).ok();
        portmap.on("CHECK", &a).ok();
        assert!(tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_some());
    }
}

/// A program that owns a table while it runs.
struct Owner(Child);

impl Owner {
    fn of(table: &str) -> Self {
        let mut nft = Command::new("nft");
        nft.arg("--interactive").stdin(Stdio::piped());
        let mut nft = nft.stdout(Stdio::null()).spawn().unwrap();
        let add = format!("add table {table} {{ flags owner; }}\n");
        nft.stdin
            .as_mut()
            .unwrap()
            .write_all(add.as_bytes())
            .unwrap();
        Self(nft)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_table_of_another_program_is_named_as_such() {
    let host = Host::new();
    let a = host.sandbox("a");
    let version = "1.1.0";
    let ports = host.ports().with("cniVersion", version);
    let ports = ports.with_bridge("cniVersion", version);
    let portmap = ports.attach(&a, &["8080:80"]);
    let owner = Owner::of("inet cni-portmap");
    let tables = || host.run("nft", &["list", "tables"]);
    assert!(eventually(|| tables().contains("cni-portmap")));
    let words = ["table cni-portmap belongs to another running program"];
    for (verb, code) in [("ADD", 100), ("STATUS", 50)] {
        let refusal = portmap.on(verb, &a).error();
        refusal.expect(code, &words);
        assert!(!refusal.mentions("CAP_NET_ADMIN"), "{refusal:?}");
    }
    ports.forgotten(&a).ok();
    drop(owner);
    assert!(eventually(|| !tables().contains("cni-portmap")));
    portmap.add(&a);
    assert!(tcp_by_port(&host, "127.0.0.1:8080", (&a, 80)).is_some());
}
