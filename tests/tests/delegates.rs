//! bridge with IPAM plugins that behave well or badly.

use std::fs;

use serde_json::{Value, json};
use tests::{Host, Network, Place as _, Refusal};

/// Returns the network `pods` with a shell script as its IPAM plugin. The script records each verb
/// and then runs `on_add`.
fn scripted<'h>(host: &'h Host, on_add: &str) -> Network<'h> {
    host.script(
        "scripted",
        &format!("echo $CNI_COMMAND >> {LOG}\n[ $CNI_COMMAND = ADD ] || exit 0\n{on_add}"),
    );
    host.bridge().with("ipam", json!({"type": "scripted"}))
}

fn calls() -> String {
    fs::read_to_string(LOG)
        .unwrap_or_default()
        .replace('\n', " ")
        .trim()
        .to_owned()
}

/// Returns shell code that prints a lease.
fn print_lease(address: &str) -> String {
    let lease =
        json!({"cniVersion": "1.0.0", "ips": [{"address": address, "gateway": "10.5.0.1"}]});
    format!("echo '{lease}'")
}

/// Checks that ADD with such an IPAM plugin fails, that DEL of the plugin runs, and that nothing is
/// left. Returns the error of `bridge`.
fn failure(on_add: &str) -> Refusal {
    failure_of(Host::card, on_add);
    failure_of(Host::ptp, on_add);
    failure_of(Host::bridge, on_add)
}

fn failure_of(plugin: fn(&Host) -> Network<'_>, on_add: &str) -> Refusal {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = plugin(&host);
    network.add(&a);
    network.del(&a);
    let before = host.snapshot();
    fs::remove_file(LOG).ok();
    let ipam = scripted(&host, on_add).config()["ipam"].clone();
    let refusal = network.with("ipam", ipam).on("ADD", &a).error();
    assert_eq!(calls(), "ADD DEL");
    host.snapshot().assert_same_as(&before);
    assert_eq!(a.links(), ["lo"]);
    refusal
}

const LOG: &str = "/run/test/calls";

#[test]
fn an_error_of_the_delegate_passes_through_with_code_and_details() {
    let object = json!({"cniVersion": "1.0.0", "code": 117, "msg": "no luck", "details": "at all"});
    failure(&format!("echo '{object}'; exit 1")).expect(117, &["no luck", "at all"]);
}

#[test]
fn a_delegate_that_prints_garbage_is_named() {
    failure("echo garbage").expect(6, &["scripted"]);
    failure("echo '{\"ips\": 7}'").expect(6, &["scripted", "ips"]);
}

#[test]
fn a_delegate_without_output_is_named() {
    failure("exit 0").expect(6, &["scripted"]);
}

#[test]
fn a_delegate_that_fails_without_an_error_object_is_named() {
    for script in [
        "echo garbage; exit 3",
        "exit 3",
        "echo '{}'; exit 3",
        "kill -9 $$",
    ] {
        let refusal = failure(script);
        assert!(refusal.mentions("scripted"), "{refusal:?}");
    }
}

#[test]
fn a_delegate_that_leases_no_address_is_refused() {
    let refusal = failure("echo '{\"cniVersion\": \"1.0.0\"}'");
    assert!(refusal.mentions("address"), "{refusal:?}");
}

#[test]
fn a_delegate_that_names_an_interface_which_it_does_not_list_is_understood() {
    let host = Host::new();
    let a = host.sandbox("a");
    let lease = r#"echo '{"cniVersion":"1.0.0","ips":[{"address":"10.5.0.2/24","interface":0}]}'"#;
    for network in [
        scripted(&host, lease),
        scripted(&host, lease).by_reference(),
    ] {
        let run = |verb| {
            network
                .on(verb, &a)
                .env("CNI_PATH", host.search_path())
                .ok()
        };
        let result = run("ADD");
        assert_eq!(result["ips"][0]["interface"], 2, "{result}");
        assert_eq!(a.addresses("eth0"), ["10.5.0.2/24"]);
        run("DEL");
    }
}

#[test]
fn a_delegate_gets_the_environment_and_the_whole_configuration() {
    let host = Host::new();
    let a = host.sandbox("a");
    let lease = print_lease("10.5.0.7/24");
    let network = scripted(
        &host,
        &format!("cat > {LOG}.stdin; env > {LOG}.env; echo plugh >&2; {lease}"),
    );
    let network = network
        .with("ipam.unknown", json!({"A": [1]}))
        .with("Unknown", "kept");
    let outcome = network
        .on("ADD", &a)
        .args("IgnoreUnknown=1;IP=10.5.0.7")
        .env("TRACEPARENT", "00-1")
        .run();
    outcome.ok();
    let stdin: Value =
        serde_json::from_str(&fs::read_to_string(format!("{LOG}.stdin")).unwrap()).unwrap();
    assert_eq!(&stdin, network.config());
    let environment = fs::read_to_string(format!("{LOG}.env")).unwrap();
    for variable in [
        "CNI_COMMAND=ADD",
        "CNI_CONTAINERID=a",
        "CNI_NETNS=/run/netns/a",
        "CNI_IFNAME=eth0",
        "CNI_ARGS=IgnoreUnknown=1;IP=10.5.0.7",
        "TRACEPARENT=00-1",
    ] {
        assert!(
            environment.lines().any(|line| line == variable),
            "{variable}"
        );
    }
    assert!(
        outcome.stderr.contains("plugh"),
        "its standard error is ours"
    );
}

#[test]
fn every_verb_is_forwarded() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = scripted(&host, &print_lease("10.5.0.7/24")).with("cniVersion", "1.1.0");
    let result = network.add(&a);
    network.check(&a, &result).ok();
    network.call("STATUS").ok();
    network.gc(&[&a]).ok();
    network.del(&a);
    assert_eq!(calls(), "ADD CHECK STATUS GC DEL");
}

#[test]
fn a_delegate_that_may_look_into_the_sandbox_finds_the_link_there() {
    let host = Host::new();
    let a = host.sandbox("a");
    let look = format!("nsenter --net=$CNI_NETNS ip -o link show eth0 > {LOG}.link");
    let network = scripted(&host, &format!("{look}; {}", print_lease("10.5.0.7/24")));
    network.add(&a);
    let seen = fs::read_to_string(format!("{LOG}.link")).unwrap();
    assert!(seen.contains("state UP"), "{seen}");
    let mac = a.mac("eth0");
    assert!(
        seen.contains(&mac),
        "the MAC that the delegate saw stays: {seen}, {mac}"
    );
    assert!(a.pings("10.5.0.1"));
    network.del(&a);
    network.add(&a);
    assert_eq!(a.mac("eth0"), mac, "the same attachment has the same MAC");
    let asked = network.with("runtimeConfig.mac", "02:00:00:00:00:07");
    let b = host.sandbox("b");
    asked.add(&b);
    let seen = fs::read_to_string(format!("{LOG}.link")).unwrap();
    assert!(seen.contains("02:00:00:00:00:07"), "{seen}");
}

#[test]
fn the_first_directory_with_the_delegate_is_taken() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.script(
        "host-local",
        &format!("[ $CNI_COMMAND = ADD ] && {}", print_lease("10.5.0.9/24")),
    );
    host.bridge_v4().add(&a);
    assert_eq!(a.addresses("eth0"), ["10.5.0.9/24"]);
}

#[test]
fn static_addresses_of_both_families() {
    let host = Host::new();
    let a = host.sandbox("a");
    let ipam = json!({
        "type": "static",
        "addresses": [{"address": "10.5.0.7/24", "gateway": "10.5.0.1"}, {"address": "fd00:5::7/64", "gateway": "fd00:5::1"}],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        "dns": {"nameservers": ["192.0.2.53"]},
    });
    let network = host.bridge().with("ipam", ipam);
    let result = network.add(&a);
    assert_eq!(a.addresses("eth0"), ["10.5.0.7/24", "fd00:5::7/64"]);
    assert_eq!(a.mac("eth0"), "0a:58:0a:05:00:07");
    assert_eq!(a.default_gateways(), ["10.5.0.1", "fd00:5::1"]);
    assert_eq!(result["dns"]["nameservers"], json!(["192.0.2.53"]));
    assert!(a.pings("10.5.0.1") && a.pings("fd00:5::1"));
    network.check(&a, &result).ok();
    network.with("prevResult", result).del(&a);
    assert_eq!(host.links(), ["cni0", "lo"]);
}
