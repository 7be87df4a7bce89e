//! portmap: evidence that the sandbox of a port's holder was deleted.
//!
//! `CNI_NETNS` may be a runtime's own mount, or a path through a process. The host's end of the
//! pair disappears with the sandbox.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tests::traffic::{Connection, tcp_by_port};
use tests::{Host, Network, Place as _, Ports, Sandbox, eventually};

/// Pod `a`, which has port 8080 and is known by another path, and pod `b`, which asks for the port.
struct Rivals<'h> {
    host: &'h Host,
    ports: Ports<'h>,
    a: Sandbox,
    b: Sandbox,
    /// portmap of `a`.
    holds: Network<'h>,
    asks: Network<'h>,
}

impl<'h> Rivals<'h> {
    /// Creates the pods. `path` returns the path of `a`, and `result` changes the result that
    /// portmap receives.
    fn new(
        host: &'h Host,
        path: impl FnOnce(&Sandbox) -> PathBuf,
        result: impl FnOnce(Value) -> Value,
    ) -> Self {
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        let ports = host.ports();
        let portmap = ports.attach(&a, &["8080:80"]);
        let told = result(portmap.config()["prevResult"].clone());
        let holds = portmap.with("prevResult", told);
        holds.on("ADD", &a).netns(path(&a)).ok();
        let asks = ports.attach(&b, &["8080:80"]);
        Self {
            host,
            ports,
            a,
            b,
            holds,
            asks,
        }
    }

    fn is_served_by(&self, pod: &Sandbox) -> bool {
        tcp_by_port(self.host, "127.0.0.1:8080", (pod, 80)).is_some()
    }

    /// Waits until the sandbox of `a` has ended and nothing of it is left.
    fn has_ended(&self) {
        let ports = || self.host.ip_json("link show master cni0");
        assert!(eventually(|| ports().len() == 1));
    }

    #[track_caller]
    fn expect_refused(&self) {
        let refusal = self.asks.on("ADD", &self.b).error();
        refusal.expect(11, &["cni:pods/a/eth0"]);
    }

    #[track_caller]
    fn expect_taken_over(&self) {
        let outcome = self.asks.on("ADD", &self.b).run();
        outcome.ok();
        let said =
            outcome.stderr.contains("cni:pods/a/eth0") && outcome.stderr.contains("taken over");
        assert!(said, "{outcome:?}");
        assert!(self.is_served_by(&self.b));
        self.ports.forgotten(&self.a).ok();
        assert!(self.is_served_by(&self.b), "a late DEL takes nothing");
    }
}

/// Returns a result with the container's link and these links of the host.
fn with_host_links(mut result: Value, names: &[&str]) -> Value {
    let container_link = result["interfaces"][2].take();
    let host_links = names.iter().map(|name| json!({"name": name}));
    result["interfaces"] = [container_link].into_iter().chain(host_links).collect();
    for ip in result["ips"].as_array_mut().unwrap() {
        ip["interface"] = json!(0);
    }
    result
}

/// Returns the result of a plugin without a pair, such as macvlan.
fn without_host_links(result: Value) -> Value {
    with_host_links(result, &[])
}

fn as_it_is(result: Value) -> Value {
    result
}

#[test]
fn a_process_that_ends_with_its_sandbox_frees_the_port() {
    let host = Host::new();
    let mut process = None;
    let rivals = Rivals::new(&host, |a| process.insert(a.inhabitant()).netns(), as_it_is);
    rivals.a.remove();
    rivals.expect_refused();
    drop(process);
    rivals.has_ended();
    rivals.expect_taken_over();
}

#[test]
fn a_process_that_ends_before_its_sandbox_frees_nothing() {
    let host = Host::new();
    let mut process = None;
    let rivals = Rivals::new(&host, |a| process.insert(a.inhabitant()).netns(), as_it_is);
    drop(process);
    rivals.expect_refused();
    assert!(rivals.is_served_by(&rivals.a));
    host.end(&rivals.a);
    rivals.expect_taken_over();
}

/// The kernel reuses the number of a process.
#[test]
fn a_path_that_names_another_file_now_proves_nothing() {
    let host = Host::new();
    let elsewhere = host.sandbox("elsewhere");
    let mut way = None;
    let rivals = Rivals::new(
        &host,
        |a| {
            let file = way.insert(File::open(a.path()).unwrap());
            format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()
        },
        as_it_is,
    );
    let before = way.take().map(|file| file.as_raw_fd());
    let way = File::open(elsewhere.path()).unwrap();
    assert_eq!(Some(way.as_raw_fd()), before, "the same path");
    rivals.expect_refused();
    assert!(rivals.is_served_by(&rivals.a));
    host.end(&rivals.a);
    rivals.expect_taken_over();
}

/// gVisor and Kata do this: they have a network stack of their own.
#[test]
fn a_sandbox_that_takes_its_addresses_from_the_kernel_keeps_its_port() {
    let host = Host::new();
    let rivals = Rivals::new(&host, |a| a.path().to_owned(), as_it_is);
    rivals.a.ip("address flush dev eth0");
    rivals.expect_refused();
    let element = ["get element inet cni-portmap ports4 { tcp . 8080 }"];
    host.run("nft", &["delete table inet cni-portmap"]);
    rivals.holds.on("RELOAD", &rivals.a).ok();
    assert!(host.run("nft", &element).contains("cni:pods/a/eth0"));
    rivals.a.ip("link delete eth0");
    rivals.expect_taken_over();
}

#[test]
fn without_a_link_of_the_host_a_sandbox_without_addresses_frees_the_port() {
    let host = Host::new();
    let rivals = Rivals::new(&host, |a| a.path().to_owned(), without_host_links);
    rivals.expect_refused();
    rivals.a.ip("address flush dev eth0");
    rivals.expect_taken_over();
}

#[test]
fn a_mount_that_is_gone_before_its_sandbox_frees_nothing() {
    let host = Host::new();
    let rivals = Rivals::new(&host, |a| a.path().to_owned(), as_it_is);
    let process = rivals.a.inhabitant();
    rivals.a.remove();
    rivals.expect_refused();
    let _again = host.sandbox("a");
    rivals.expect_refused();
    drop(process);
    rivals.has_ended();
    rivals.expect_taken_over();
}

#[test]
fn without_a_link_of_the_host_a_mount_that_is_gone_frees_the_port() {
    let host = Host::new();
    let rivals = Rivals::new(&host, |a| a.path().to_owned(), without_host_links);
    rivals.expect_refused();
    rivals.a.remove();
    rivals.expect_taken_over();
}

#[test]
fn without_a_link_of_the_host_a_process_that_is_gone_frees_nothing() {
    let host = Host::new();
    let mut process = None;
    let way = |a: &Sandbox| process.insert(a.inhabitant()).netns();
    let rivals = Rivals::new(&host, way, without_host_links);
    drop(process);
    host.end(&rivals.a);
    rivals.expect_refused();
}

/// Administrators create such links for `ip netns exec`.
#[test]
fn a_symbolic_link_into_proc_is_no_mount() {
    let host = Host::new();
    let mut process = None;
    let way = |a: &Sandbox| {
        let link = Path::new("/run/netns/link");
        symlink(process.insert(a.inhabitant()).netns(), link).unwrap();
        link.to_owned()
    };
    let rivals = Rivals::new(&host, way, without_host_links);
    drop(process);
    rivals.expect_refused();
}

#[test]
fn a_link_to_another_sandbox_proves_nothing() {
    let host = Host::new();
    let outside = host.outside();
    let mut process = None;
    let rivals = Rivals::new(
        &host,
        |a| process.insert(a.inhabitant()).netns(),
        |result| {
            let names = ["uplink", "cni0", "nowhere", "longer than a link's"];
            with_host_links(result, &names)
        },
    );
    host.ip("link delete uplink");
    drop((outside, process));
    host.end(&rivals.a);
    rivals.expect_refused();
}

/// Opens a connection from the client's port 4000 to port 8080 of the host, on which `pod` listens.
fn connect(outside: &Sandbox, pod: &Sandbox) -> Option<Connection> {
    Connection::open_from((outside, "192.0.2.2:4000"), "192.0.2.1:8080", (pod, 80))
}

/// The kernel would continue the translation of the client's first connection. In the second case
/// another pod has asked for the port, and for another one, in vain before.
#[test]
fn a_client_of_a_sandbox_that_is_gone_reaches_the_next_one_from_the_same_port() {
    for is_asked_for_in_vain in [false, true] {
        let host = Host::new();
        let outside = host.outside();
        let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
        let ports = host.ports();
        ports.add(&a, &["8080:80"]);
        let mut connection = connect(&outside, &a).unwrap();
        assert!(connection.carries());
        // Neither side is notified of the other's end.
        outside.ip("link set outside down");
        a.ip("link delete eth0");
        connection.vanish();
        outside.ip("link set outside up");
        if is_asked_for_in_vain {
            ports.add(&b, &["9090:80"]);
            let refused = ports.attach(&c, &["8080:80", "9090:80"]);
            refused.on("ADD", &c).error().expect(11, &["9090"]);
            ports.forgotten(&b).ok();
            ports.bridge().del(&b);
        }
        ports.add(&b, &["8080:80"]);
        let mut connection = connect(&outside, &b).expect("a connection to b");
        assert!(connection.carries());
    }
}
