//! cnitool doctor: a node with one kind of damage after another, and a healthy one.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;
use tests::{Chain, Host, Place as _, Removal, Tool};

const PORTS: [&str; 2] = ["8080:80", "8053:53/udp"];

/// Runs the commands that fix this subject.
#[track_caller]
fn fix(tool: &Tool<'_>, subject: &str) {
    let commands = tool.doctor().fixes(subject);
    assert!(!commands.is_empty());
    for command in commands {
        tool.obey(&command);
    }
}

#[test]
fn healthy_node_has_status_0() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let tool = host.pods();
    assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
    tool.add("pods", &a, &PORTS);
    tool.add("pods", &b, &[]);
    let before = host.snapshot();
    let findings = tool.doctor();
    assert_eq!(findings.status, 0, "{findings:#?}");
    findings.expect(
        "ok",
        "conflist",
        &["pods.conflist", "which the runtime uses"],
    );
    findings.expect("ok", "lease", &["4 leases"]);
    host.snapshot().assert_same_as(&before);
}

#[test]
fn page_fits_a_terminal_and_is_plain_where_none_is() {
    let host = Host::new();
    let tool = host.tool();
    let outcome = tool.run(&["doctor"]).run();
    assert_eq!(outcome.status.code(), Some(2));
    let page = &outcome.stdout;
    assert!(page.lines().all(|line| line.len() <= 80), "{page}");
    assert!(!page.contains('\u{1b}'), "{page}");
    assert!(
        page.contains("\nproblem  conflist   no network in "),
        "{page}"
    );
    assert!(
        page.lines().last().unwrap().starts_with("1 problem, "),
        "{page}"
    );
}

#[test]
fn invalid_json_is_reported_with_its_line() {
    let host = Host::new();
    let tool = host.pods();
    tool.write("00-broken.conflist", "{\"name\": \"x\",\n  \"plugins\": [}");
    let findings = tool.doctor();
    let words = [
        "00-broken.conflist",
        "line 2 column 15",
        "vi +2 ",
        "containerd stops",
    ];
    findings.expect("problem", "conflist", &words);
    fs::remove_file(host.dir().join("net.d/00-broken.conflist")).unwrap();
    tool.write("zz-broken.conflist", "{");
    assert_eq!(tool.doctor().status, 1);
}

#[test]
fn misspelt_key_is_reported_with_the_right_one() {
    let host = Host::new();
    let tool = host.tool();
    let bridge = host.bridge().with("isDefaultGatewey", true);
    tool.configure("pods", &[bridge.config().clone()]);
    let findings = tool.doctor();
    assert_eq!(findings.status, 1);
    findings.expect(
        "warning",
        "key",
        &["isDefaultGatewey", "isDefaultGateway was meant"],
    );
    fix(&tool, "key");
    assert_eq!(tool.doctor().status, 0);
}

#[test]
fn plugin_that_is_missing_or_cannot_be_run_is_reported() {
    let host = Host::new();
    let tool = host.tool();
    let stranger = json!({"type": "stranger"});
    let bridge = host.bridge().with("isDefaultGateway", true);
    tool.configure("pods", &[bridge.config().clone(), stranger]);
    tool.doctor().expect(
        "problem",
        "plugin",
        &["stranger is not in", "install -m 755"],
    );
    host.script(
        "stranger",
        "echo '{\"cniVersion\": \"1.1.0\", \"supportedVersions\": [\"1.1.0\"]}'",
    );
    assert_eq!(tool.doctor().status, 0);
    let program = host.dir().join("plugins/stranger");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
    tool.doctor()
        .expect("problem", "plugin", &["not executable", "chmod 755"]);
    fix(&tool, "plugin");
    host.script(
        "stranger",
        "echo '{\"cniVersion\": \"1.0.0\", \"supportedVersions\": [\"1.0.0\"]}'",
    );
    tool.doctor()
        .expect("problem", "plugin", &["does not support version 1.1.0"]);
}

#[test]
fn version_lists_the_plugins_of_the_suite() {
    let host = Host::new();
    let version = host.tool().run(&["--version"]).run().stdout;
    for plugin in ["plugins of this suite: bridge, ptp,", "tap,", "sbr, vrf"] {
        assert!(version.contains(plugin), "{version}");
    }
}

#[test]
fn dhcp_without_its_daemon_is_reported() {
    let host = Host::new();
    let tool = host.tool();
    let network = tests::dhcp::network(&host);
    tool.configure("pods", &[network.config().clone()]);
    tool.doctor()
        .expect("problem", "key", &["dhcp: no DHCP daemon listens on"]);
    let _daemon = tests::dhcp::Daemon::start(&host);
    let listed = tool.run(&["doctor", "--json"]).run().stdout;
    assert!(!listed.contains("DHCP daemon"), "{listed}");
}

#[test]
fn undeclared_capability_is_reported_and_fixed() {
    let host = Host::new();
    let tool = host.tool();
    let portmap = json!({"type": "portmap"});
    let bridge = host.bridge().with("isDefaultGateway", true);
    tool.configure("pods", &[bridge.config().clone(), portmap]);
    tool.doctor().expect(
        "problem",
        "capability",
        &["portMappings", "hostPorts silently do not work"],
    );
    fix(&tool, "capability");
    assert_eq!(tool.doctor().status, 0);
    let a = host.sandbox("a");
    tool.add("pods", &a, &PORTS);
    assert!(host.run("nft", &["list", "ruleset"]).contains("8080"));
}

#[test]
fn first_file_by_name_is_the_one_that_is_taken() {
    let host = Host::new();
    let tool = host.pods();
    tool.configure_all("others", 2);
    let findings = tool.doctor();
    findings.expect(
        "ok",
        "conflist",
        &["network others", "which the runtime uses"],
    );
    assert!(!findings.holds("ok", "conflist", &["network pods", "uses"]));
    let text = fs::read_to_string(host.dir().join("net.d/pods.conflist")).unwrap();
    tool.write("zz.conflist", &text);
    tool.doctor().expect(
        "warning",
        "conflist",
        &["network pods is in pods.conflist and zz"],
    );
    tool.write("00.conf", &text);
    tool.doctor().expect(
        "problem",
        "conflist",
        &["00.conf", "a list of plugins", "mv "],
    );
    fix(&tool, "conflist");
}

#[test]
fn overlapping_ranges_are_reported() {
    let host = Host::new();
    let _outside = host.outside();
    let tool = host.pods();
    tool.configure_all("others", 1);
    let findings = tool.doctor();
    findings.expect(
        "warning",
        "range",
        &["10.1.0.0/24 of others", "overlaps", "of pods"],
    );
    tool.configure_all("others", 2);
    host.ip("address add 10.1.7.77/16 dev uplink");
    let words = ["10.1.7.77/16 on uplink", "cannot be reached"];
    tool.doctor().expect("warning", "range", &words);
    host.ip("route add 198.51.100.0/24 via 10.1.0.1");
    let words = ["10.1.7.77/16 on uplink", "ADD fails"];
    tool.doctor().expect("problem", "range", &words);
    let a = host.sandbox("a");
    let refused = tool.on("add", "pods", &a).run();
    let reason = "belongs to 10.1.0.0/16 on uplink";
    assert!(refused.stderr.contains(reason), "{refused:?}");
    host.ip("address add 10.2.0.77/24 dev uplink");
    tool.doctor().expect(
        "problem",
        "range",
        &["10.2.0.77/24 on uplink", "others.conflist"],
    );
    host.ip("address flush dev uplink");
    host.ip("address add 192.0.2.1/24 dev uplink");
    host.ip("route add 10.2.0.128/25 via 192.0.2.2");
    tool.doctor()
        .expect("problem", "range", &["match the route to 10.2.0.128/25"]);
    fix(&tool, "range");
    assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
}

#[test]
fn range_without_a_free_address_is_reported() {
    let host = Host::new();
    let tool = host.tool();
    let bridge = host.bridge_v4().with("isDefaultGateway", true);
    let bridge = bridge.with("ipam.ranges", json!([[{"subnet": "10.1.0.0/30"}]]));
    tool.configure("pods", &[bridge.config().clone()]);
    assert_eq!(tool.doctor().status, 0);
    tool.add("pods", &host.sandbox("a"), &[]);
    tool.doctor()
        .expect("problem", "range", &["1 of 1 addresses are held"]);
}

#[test]
fn stale_leases_are_reported_and_released() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let tool = host.pods();
    tool.add("pods", &a, &PORTS);
    tool.add("pods", &b, &[]);
    a.remove();
    // The pair disappears a little after the namespace.
    assert!(tests::eventually(|| tool.doctor().status == 1));
    let findings = tool.doctor();
    findings.expect(
        "warning",
        "lease",
        &[
            "2 addresses leased to sandboxes that no longer exist",
            "10.1.0.2",
        ],
    );
    fix(&tool, "lease");
    let findings = tool.doctor();
    assert_eq!(findings.status, 0, "{findings:#?}");
    findings.expect("ok", "lease", &["2 leases"]);
}

#[test]
fn elements_without_lease_and_link_are_reported() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &PORTS);
    a.remove();
    fs::remove_dir_all(host.lease_dir()).unwrap();
    let words = [
        "cni:pods/",
        "has elements in",
        "cni-portmap",
        "CNI_COMMAND=DEL",
    ];
    assert!(tests::eventually(|| tool
        .doctor()
        .holds("warning", "element", &words)));
    fix(&tool, "element");
    assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
    assert!(!host.run("nft", &["list ruleset"]).contains("cni:"));
}

#[test]
fn leases_without_holder_are_reported() {
    let host = Host::new();
    let tool = host.pods();
    fs::create_dir_all(host.lease_dir().join("pods")).unwrap();
    fs::write(host.lease_dir().join("pods/10.1.0.9"), "").unwrap();
    tool.doctor()
        .expect("warning", "lease", &["1 lease without holder", "10.1.0.9"]);
    assert_eq!(tool.doctor().fixes("lease"), [""; 0]);
    tool.add("pods", &host.sandbox("a"), &[]);
    assert_eq!(tool.doctor().status, 0);
}

#[test]
fn flushed_rules_are_reported_and_restored() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.pods();
    tool.add("pods", &a, &PORTS);
    host.run("nft", &["flush ruleset"]);
    tool.doctor().expect(
        "problem",
        "firewall",
        &["elements are missing", "cnitool reload"],
    );
    fix(&tool, "firewall");
    assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
}

/// The second limit, which holds where root in a pod evades tc.
#[test]
fn flushed_limits_are_reported_and_restored() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let tool = host.tool();
    let limits = json!({"type": "bandwidth", "egressRate": 8_000_000, "egressBurst": 800_000});
    let bridge = host.bridge().with("isDefaultGateway", true);
    tool.configure("pods", &[bridge.config().clone(), limits]);
    for pod in [&a, &b] {
        tool.on("add", "pods", pod).ok();
    }
    assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
    for gone in ["flush ruleset", "delete table bridge cni-bandwidth"] {
        host.run("nft", &[gone]);
        let findings = tool.doctor();
        let words = ["in cni-bandwidth", "exceed its limit"];
        findings.expect("problem", "firewall", &words);
        assert_eq!(findings.fixes("firewall"), ["cnitool reload"]);
        tool.run(&["reload"]).ok();
        assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
    }
    // Of one pod alone.
    host.run("nft", &["flush set bridge cni-bandwidth limits"]);
    tool.on("del", "pods", &a).ok();
    let findings = tool.doctor();
    findings.expect("problem", "firewall", &["in cni-bandwidth"]);
    tool.on("del", "pods", &b).ok();
    assert_eq!(tool.doctor().status, 0, "{:#?}", tool.doctor());
}

#[test]
fn chains_of_the_reference_are_reported_after_their_pod_is_deleted() {
    let host = Host::new();
    let a = host.sandbox("a");
    let chain =
        Chain::new(&host, &["bridge", "portmap"]).with("bridge", "macspoofchk", &json!(false));
    let chain = chain.with_ports([8080, 8080]);
    let result = chain.by_reference().add(&a).unwrap();
    let tool = host.tool();
    tool.configure_all("others", 2);
    tool.doctor().expect("ok", "remnant", &["for a live pod"]);
    let words = ["cni0.route_localnet is 1", "The Go plugin portmap sets it"];
    tool.doctor().expect("warning", "localhost", &words);
    assert_eq!(tool.doctor().fixes("localhost"), [""; 0]);
    chain.remove(Removal::Del, (&a, &result)).unwrap();
    let words = ["for deleted pods: 4", "cnitool migrate --remove"];
    tool.doctor().expect("warning", "remnant", &words);
    fix(&tool, "remnant");
    // Its sysctl, which nothing guards.
    tool.fix("localhost");
}
