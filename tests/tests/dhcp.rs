//! `dhcp` over the new link of a bridge, with dnsmasq as the server.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tests::dhcp::{Daemon, SOCKET, network, on_card, records};
use tests::{Dnsmasq, Host, Place as _, REFERENCE, Sandbox, eventually};

/// A program that ends when this is dropped.
struct Running(Child);

impl Running {
    /// Starts the reference's DHCP daemon.
    fn go_daemon() -> Self {
        let mut command = Command::new(format!("{REFERENCE}/dhcp"));
        command.args(["daemon", "-socketpath", SOCKET]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = command
            .spawn()
            .expect("install containernetworking-plugins");
        // The socket exists before the daemon listens.
        assert!(eventually(|| UnixStream::connect(SOCKET).is_ok()));
        Self(daemon)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Starts dnsmasq, which leases 10.6.0.50 to 10.6.0.60.
fn dnsmasq(host: &Host, more: &[&str]) -> Dnsmasq {
    let range = "--dhcp-range=10.6.0.50,10.6.0.60,255.255.255.0";
    let common = [range, "--dhcp-authoritative", "--no-ping"];
    Dnsmasq::start(host, "cni0", &[&common, more].concat())
}

/// Checks that an ADD leased an address that carries traffic. Returns the address.
fn expect_leased(a: &Sandbox, result: &Value) -> String {
    let address = result["ips"][0]["address"].as_str().unwrap();
    assert!(
        address.starts_with("10.6.0.5") || address.starts_with("10.6.0.60"),
        "{address}"
    );
    assert_eq!(a.addresses("eth0"), [address]);
    assert_eq!(a.default_gateways(), ["10.6.0.1"]);
    assert!(a.pings("10.6.0.1"));
    assert_eq!(result["interfaces"][2]["mac"], a.mac("eth0"));
    address.to_owned()
}

#[test]
fn an_address_is_leased_over_the_new_link() {
    let host = Host::new();
    let network = network(&host);
    let leases = host.dir().join("dnsmasq.leases");
    let file = format!("--dhcp-leasefile={}", leases.display());
    let _server = dnsmasq(&host, &[&file]);
    let daemon = Daemon::start(&host);
    let a = host.sandbox("a");
    let result = network.add(&a);
    let address = expect_leased(&a, &result);
    network.check(&a, &result).ok();
    let text = fs::read_to_string(&leases).unwrap();
    assert!(text.contains(address.trim_end_matches("/24")), "{text}");
    network.clone().with("prevResult", result.clone()).del(&a);
    daemon.says("from the interface");
    assert!(eventually(|| fs::read_to_string(&leases)
        .unwrap()
        .is_empty()));
    assert_eq!(host.links(), ["cni0", "lo"]);
    assert!(records().is_empty());
    let again = network.add(&a);
    assert_eq!(
        again["ips"], result["ips"],
        "the same attachment is the same client"
    );
}

#[test]
fn containers_get_different_addresses_and_gc_releases_those_of_dead_ones() {
    let host = Host::new();
    let network = network(&host);
    let _server = dnsmasq(&host, &[]);
    let _daemon = Daemon::start(&host);
    let pods = ["a", "b", "c"].map(|name| host.sandbox(name));
    let results = tests::at_once(&pods, |pod| network.add(pod));
    let addresses = addresses(&results);
    let [a, b, c] = &pods;
    assert!(a.pings(addresses[1].trim_end_matches("/24")));
    network.gc(&[a, c]).ok();
    assert_eq!(records().len(), 2);
    network.check(a, &results[0]).ok();
    network.del(a);
    network.del(b);
    network.del(c);
    assert!(records().is_empty());
}

/// Returns the addresses of several results, which all differ.
fn addresses(results: &[Value]) -> Vec<String> {
    let text = |it: &Value| it["ips"][0]["address"].as_str().unwrap().to_owned();
    let all: Vec<_> = results.iter().map(text).collect();
    let different: BTreeSet<_> = all.iter().collect();
    assert_eq!(all.len(), different.len(), "{all:?}");
    all
}

#[test]
fn the_plugin_of_the_reference_leases_over_the_new_link_and_releases() {
    let host = Host::new();
    let network = network(&host);
    let leases = host.dir().join("dnsmasq.leases");
    let file = format!("--dhcp-leasefile={}", leases.display());
    let _server = dnsmasq(&host, &[&file]);
    let _daemon = Running::go_daemon();
    host.script("dhcp", &format!("exec {REFERENCE}/dhcp"));
    let a = host.sandbox("a");
    let result = network.add(&a);
    expect_leased(&a, &result);
    network.clone().with("prevResult", result.clone()).del(&a);
    assert!(eventually(|| fs::read_to_string(&leases)
        .unwrap()
        .is_empty()));
    assert_eq!(host.links(), ["cni0", "lo"]);
    assert_eq!(network.add(&a)["ips"], result["ips"]);
}

/// libcni's cache names the attachment to the daemon at its start. Otherwise, CHECK does.
#[test]
fn leases_of_the_go_daemon_are_taken_over() {
    for is_cached in [true, false] {
        let host = Host::new();
        let network = network(&host);
        let leases = host.dir().join("dnsmasq.leases");
        let file = format!("--dhcp-leasefile={}", leases.display());
        let _server = dnsmasq(&host, &[&file]);
        let go = Running::go_daemon();
        host.script("dhcp", &format!("exec {REFERENCE}/dhcp"));
        let a = host.sandbox("a");
        let result = network.add(&a);
        drop(go);
        fs::remove_file(host.dir().join("plugins/dhcp")).unwrap();
        if is_cached {
            let config = BASE64_STANDARD.encode(network.config().to_string());
            let cached = json!({
                "kind": "cniCacheV1", "containerId": "a", "config": config, "ifName": "eth0",
                "networkName": "pods", "cniArgs": [["IgnoreUnknown", "1"]], "result": result,
            });
            fs::create_dir_all("/var/lib/cni/results").unwrap();
            fs::write("/var/lib/cni/results/pods-a-eth0", cached.to_string()).unwrap();
            fs::write("/var/lib/cni/results/other", "{").unwrap();
        }
        let daemon = Daemon::start(&host);
        assert_eq!(daemon.log().contains("another daemon leased"), is_cached);
        network.check(&a, &result).ok();
        expect_leased(&a, &result);
        assert_eq!(records().len(), 1);
        network.del(&a);
        assert!(eventually(|| fs::read_to_string(&leases)
            .unwrap()
            .is_empty()));
    }
}

/// Until CHECK, the Go daemon does not know our leases. The server gives the same client the same
/// address. Our next daemon releases what the Go daemon did not.
#[test]
fn the_go_daemon_takes_over_by_check_what_ours_leased() {
    let host = Host::new();
    let network = on_card(&host, "macvlan");
    let leases = host.dir().join("dnsmasq.leases");
    let file = format!("--dhcp-leasefile={}", leases.display());
    let _server = dnsmasq(&host, &[&file]);
    let count = || fs::read_to_string(&leases).unwrap().lines().count();
    let daemon = Daemon::start(&host);
    let pods = ["a", "b"].map(|name| host.sandbox(name));
    let results = pods.each_ref().map(|pod| network.add(pod));
    daemon.end();
    {
        let _daemon = Running::go_daemon();
        let theirs = network.by_reference();
        theirs.check(&pods[0], &results[0]).ok();
        assert_eq!(count(), 2);
        for pod in &pods {
            assert!(pod.pings("10.6.0.1"));
            theirs.del(pod);
            assert_eq!(pod.links(), ["lo"]);
        }
        assert!(count() > 0, "the Go daemon releases only its own leases");
    }
    let _daemon = Daemon::start(&host);
    network.gc(&[]).ok();
    assert!(eventually(|| count() == 0 && records().is_empty()));
}

#[test]
fn daemon_and_plugin_of_different_suites_say_so() {
    let host = Host::new();
    let network = network(&host);
    let a = host.sandbox("a");
    {
        let _daemon = Running::go_daemon();
        for verb in ["ADD", "CHECK", "DEL"] {
            let call = network
                .clone()
                .with("prevResult", json!({"cniVersion": "1.0.0"}));
            let refusal = call.with("type", "dhcp").on(verb, &a).error();
            refusal.expect(100, &["containernetworking/plugins", SOCKET]);
        }
    }
    let _daemon = Daemon::start(&host);
    let reference = host.reference("dhcp").sandbox(&a).config(network.config());
    let refusal = reference.verb("ADD").error();
    assert!(
        refusal.mentions("containernetworking/plugins"),
        "{refusal:?}"
    );
}

#[test]
fn without_a_daemon_add_and_status_say_what_to_start_and_del_succeeds() {
    let host = Host::new();
    let network = network(&host).with("cniVersion", "1.1.0");
    let a = host.sandbox("a");
    let refusal = network.on("ADD", &a).error();
    refusal.expect(11, &["no DHCP daemon listens on", SOCKET, "dhcp daemon"]);
    assert_eq!(host.links(), ["cni0", "lo"]);
    let alone = network.clone().with("type", "dhcp");
    alone.call("STATUS").error().expect(50, &["no DHCP daemon"]);
    network.del(&a);
    network.gc(&[]).ok();
    let _daemon = Daemon::start(&host);
    alone.call("STATUS").ok();
}
