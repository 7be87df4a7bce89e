//! cnitool: runs a conflist as a runtime does.

use std::fs;

use serde_json::{Value, json};
use tests::{Host, Invocation, Outcome, Place as _, Sandbox};

/// Returns a host with the network `pods`: bridge, then a plugin that records verbs and requests
/// and otherwise behaves like loopback.
fn host_with_chain() -> Host {
    let host = Host::new();
    let log = host.dir().join("calls");
    let log = log.display();
    host.script(
        "witness",
        &format!(
            "echo $CNI_COMMAND >> {log}\nPATH=$CNI_PATH:$PATH\ntee {log}.$CNI_COMMAND | loopback"
        ),
    );
    let mut bridge = host.bridge().config().clone();
    for key in ["name", "cniVersion"] {
        bridge.as_object_mut().unwrap().remove(key);
    }
    bridge["capabilities"] = json!({"mac": true, "ips": true});
    let witness = json!({"type": "witness", "capabilities": {"portMappings": true, "mac": false}});
    write_conflist(
        &host,
        &json!({
            "cniVersion": "0.4.0", "cniVersions": ["0.4.0", "1.0.0", "1.1.0"],
            "name": "pods", "plugins": [bridge, witness],
        }),
    );
    host
}

fn write_conflist(host: &Host, list: &Value) {
    let directory = host.dir().join("net.d");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("10-pods.conflist"), list.to_string()).unwrap();
}

fn cnitool(host: &Host, words: &[&str]) -> Invocation {
    let tool = host
        .plugin("cnitool")
        .env("NETCONFPATH", host.dir().join("net.d"));
    words.iter().fold(tool, Invocation::argument)
}

fn on(host: &Host, verb: &str, sandbox: &Sandbox) -> Invocation {
    cnitool(host, &[verb, "pods", sandbox.path().to_str().unwrap()])
}

/// Returns the witness's last request with `verb`.
fn request(host: &Host, verb: &str) -> Value {
    let text = fs::read_to_string(host.dir().join(format!("calls.{verb}"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn calls(host: &Host) -> String {
    let text = fs::read_to_string(host.dir().join("calls")).unwrap_or_default();
    text.replace('\n', " ").trim().to_owned()
}

#[track_caller]
fn fails(outcome: &Outcome, word: &str) {
    assert!(
        !outcome.status.success() && outcome.stderr.contains(word),
        "{outcome:#?}"
    );
}

#[test]
fn a_chain_is_attached_checked_and_detached() {
    let host = host_with_chain();
    let a = host.sandbox("a");
    let result = on(&host, "add", &a).ok();
    assert_eq!(result["cniVersion"], "1.1.0", "the highest of cniVersions");
    assert_eq!(a.addresses("eth0"), ["10.1.0.2/24", "fd00:1::2/64"]);
    assert!(a.pings("10.1.0.1") && a.pings("fd00:1::1") && a.pings("127.0.0.1"));
    on(&host, "check", &a).ok();
    cnitool(&host, &["status", "pods"]).ok();
    on(&host, "del", &a).ok();
    assert_eq!(calls(&host), "ADD CHECK STATUS DEL");
    assert_eq!(a.links(), ["lo"]);
    assert!(host.leases("pods").is_empty());
    on(&host, "del", &a).ok();
}

#[test]
fn each_plugin_gets_what_runtimes_give_it() {
    let host = host_with_chain();
    let a = host.sandbox("a");
    let capabilities = json!({
        "mac": "02:00:00:00:00:07", "ips": ["10.1.0.77"],
        "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
    });
    let add = on(&host, "add", &a).env("CAP_ARGS", capabilities.to_string());
    let result = add.env("CNI_ARGS", "IgnoreUnknown=1;POD=web").ok();
    assert_eq!(a.mac("eth0"), "02:00:00:00:00:07");
    assert_eq!(a.addresses("eth0")[0], "10.1.0.77/24");
    let asked = request(&host, "ADD");
    assert_eq!(asked["name"], "pods");
    assert_eq!(asked["cniVersion"], "1.1.0");
    assert_eq!(
        asked["prevResult"], result,
        "the witness adds nothing to it"
    );
    let only_declared = json!({"portMappings": capabilities["portMappings"]});
    assert_eq!(asked["runtimeConfig"], only_declared);
    on(&host, "del", &a).ok();
    assert_eq!(
        request(&host, "DEL")["prevResult"],
        result,
        "it was remembered"
    );
    assert_eq!(request(&host, "DEL")["runtimeConfig"], only_declared);
}

#[test]
fn the_interface_has_the_name_that_was_asked_for() {
    let host = host_with_chain();
    let a = host.sandbox("a");
    on(&host, "add", &a).ok();
    on(&host, "add", &a).env("CNI_IFNAME", "net1").ok();
    assert_eq!(a.links(), ["eth0", "lo", "net1"]);
    on(&host, "del", &a).env("CNI_IFNAME", "net1").ok();
    assert_eq!(a.links(), ["eth0", "lo"]);
}

#[test]
fn check_reports_what_changed() {
    let host = host_with_chain();
    let a = host.sandbox("a");
    on(&host, "add", &a).ok();
    a.ip("address delete 10.1.0.2/24 dev eth0");
    fails(&on(&host, "check", &a).run(), "10.1.0.2");
}

#[test]
fn an_error_is_for_people() {
    let host = host_with_chain();
    let a = host.sandbox("a");
    on(&host, "add", &a).ok();
    let outcome = on(&host, "add", &a).run();
    fails(&outcome, "eth0");
    assert!(outcome.stdout.is_empty(), "{outcome:#?}");
    fails(
        &cnitool(&host, &["add", "plugh", "/run/netns/a"]).run(),
        "plugh",
    );
    assert!(a.pings("10.1.0.1"));
}

#[test]
fn del_detaches_a_sandbox_that_is_gone() {
    let host = host_with_chain();
    let a = host.sandbox("a");
    on(&host, "add", &a).ok();
    a.remove();
    on(&host, "del", &a).ok();
    assert_eq!(host.links(), ["cni0", "lo"]);
    assert!(host.leases("pods").is_empty());
}

#[test]
fn del_cleans_up_after_a_chain_that_failed_half_way() {
    let host = host_with_chain();
    let a = host.sandbox("a");
    host.script(
        "witness",
        "[ $CNI_COMMAND = ADD ] || exit 0\necho '{\"code\": 117, \"msg\": \"no luck\"}'; exit 1",
    );
    fails(&on(&host, "add", &a).run(), "no luck");
    on(&host, "del", &a).ok();
    assert_eq!(a.links(), ["lo"]);
    assert!(host.leases("pods").is_empty());
}

/// A runtime's container IDs do not depend on the namespace.
#[test]
fn what_a_runtime_attached_is_found_by_its_namespace() {
    let host = Host::new();
    let (tool, bridge) = (host.tool(), host.bridge());
    tool.configure("pods", &[bridge.config().clone()]);
    let a = host.sandbox("a");
    let unknown = "has no cached result of eth0 on network pods";
    fails(&tool.on("check", "pods", &a).run(), unknown);
    tool.remember("pods", (&a, &bridge.add(&a)));
    tool.on("check", "pods", &a).ok();
    fails(&tool.on("add", "pods", &a).run(), "as container a ");
    let of_net1 = |verb: &str| tool.on(verb, "pods", &a).env("CNI_IFNAME", "net1");
    of_net1("add").ok();
    tool.on("del", "pods", &a).ok();
    fails(&tool.on("check", "pods", &a).run(), unknown);
    of_net1("check").ok();
    assert_eq!(a.links(), ["lo", "net1"]);
    assert_eq!(host.leases("pods").len(), 2);
}

/// `a` was the relative path of a namespace, and begins the ID of a live container.
#[test]
fn a_word_means_a_cached_path_a_whole_id_or_at_least_twelve_characters() {
    let host = Host::new();
    let (tool, bridge) = (host.tool(), host.bridge());
    tool.configure("pods", &[bridge.config().clone()]);
    let [a, live] = ["a", "a0123456789abcdef"].map(|it| host.sandbox(it));
    tool.on("add", "pods", &a).ok();
    tool.remember("pods", (&live, &bridge.add(&live)));
    std::env::set_current_dir(a.path().parent().unwrap()).unwrap();
    host.end(&a);
    let del = |word: &str| {
        let outcome = tool.run(&["del", "pods", word]).run();
        assert!(outcome.status.success(), "{outcome:#?}");
        outcome.stderr
    };
    assert!(del("a").starts_with("DEL container cnitool-"));
    assert_eq!(host.leases("pods").len(), 2, "IPv4 and IPv6 of the other");
    for word in ["a", "a0123456789"] {
        let unknown = format!("{word} has no cached result of eth0");
        assert!(del(word).starts_with(&unknown));
        assert!(live.pings("10.1.0.1"), "{word}");
        fails(&tool.run(&["check", "pods", word]).run(), &unknown);
    }
    tool.run(&["check", "pods", "a0123456789a"]).ok();
    let told = del("a0123456789a");
    let words = "DEL container a0123456789abcdef interface eth0 on network pods";
    assert_eq!(told.trim_end(), words);
    assert_eq!(live.links(), ["lo"]);
}

#[test]
fn del_by_id_detaches_a_container_that_is_not_cached() {
    let host = Host::new();
    let (tool, bridge) = (host.tool(), host.bridge());
    tool.configure("pods", &[bridge.config().clone()]);
    let a = host.sandbox("a");
    bridge.add(&a);
    tool.run(&["del", "pods", "a"]).ok();
    assert!(a.links() == ["lo"] && host.leases("pods").is_empty());
    tool.on("add", "pods", &a).env("CNI_IFNAME", "net1").ok();
    let [row] = tool.ps().try_into().unwrap();
    let row: Value = row;
    let id = row["container"].as_str().unwrap();
    let words = "has no cached result of eth0, but of net1: see --ifname";
    fails(&tool.run(&["del", "pods", id]).run(), words);
    tool.run(&["del", "pods", id, "--ifname", "net1"]).ok();
    assert_eq!(a.links(), ["lo"]);
}

#[test]
fn gc_removes_attachments_whose_sandbox_is_gone() {
    let host = host_with_chain();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    on(&host, "add", &a).ok();
    on(&host, "add", &b).ok();
    host.end(&a);
    cnitool(&host, &["gc", "pods"]).ok();
    assert!(b.pings("10.1.0.1"));
    assert_eq!(host.leases("pods").len(), 2);
    assert_eq!(host.links().len(), 3);
}

/// libcni 1.3 and later run the plugins in the directory with the list's name after the list's own
/// plugins.
#[test]
fn plugins_in_the_directory_of_a_list_are_run_and_known_to_doctor() {
    let host = Host::new();
    let outside = host.outside();
    let a = host.sandbox("a");
    let tool = host.tool();
    let mut bridge = host
        .bridge()
        .with("isDefaultGateway", true)
        .config()
        .clone();
    for key in ["name", "cniVersion"] {
        bridge.as_object_mut().unwrap().remove(key);
    }
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    tool.install("pods", r#"{"cniVersion": "1.1.0", "name": "pods"}"#);
    fs::create_dir(host.dir().join("net.d/pods")).unwrap();
    tool.write("pods/10-bridge.conf", &bridge.to_string());
    tool.write("pods/20-portmap.conf", &portmap.to_string());
    let reached = || tests::traffic::tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_some();
    let findings = tool.doctor();
    findings.expect("ok", "conflist", &["pods.conflist: network pods"]);
    findings.expect("ok", "plugin", &["bridge", "portmap"]);
    tool.add("pods", &a, &["8080:80"]);
    assert!(reached());
    // A runtime caches only the file itself.
    let entry = tool.results().join(cached(&tool));
    let mut remembered: Value = serde_json::from_slice(&fs::read(&entry).unwrap()).unwrap();
    remembered["config"] = json!("eyJjbmlWZXJzaW9uIjogIjEuMS4wIiwgIm5hbWUiOiAicG9kcyJ9");
    fs::write(&entry, remembered.to_string()).unwrap();
    host.run("nft", &["flush", "ruleset"]);
    tool.run(&["reload", "pods"]).ok();
    assert!(reached());
    tool.on("del", "pods", &a).ok();
    assert!(!reached() && a.links() == ["lo"] && host.leases("pods").is_empty());
}

/// Returns the name of the only file.
fn cached(tool: &tests::Tool<'_>) -> String {
    let mut files = fs::read_dir(tool.results()).unwrap();
    let file = files.next().unwrap().unwrap();
    file.file_name().into_string().unwrap()
}
