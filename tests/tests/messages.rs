//! Messages of cnitool, the plugins and cni-agent: what is wrong, where, and what to do.

use std::fs;

use serde_json::{Value, json};
use tests::limited::{Limited, asked};
use tests::{Agent, Host, Invocation, Outcome, Place as _, Tool, other_user};

/// Runs what must fail, and returns its outcome.
#[track_caller]
fn failure(run: &Invocation, words: &[&str]) -> Outcome {
    let outcome = run.run();
    assert!(!outcome.status.success(), "{outcome:#?}");
    for word in words {
        assert!(outcome.stderr.contains(word), "{word}: {outcome:#?}");
    }
    outcome
}

/// Configures the network `pods` of the bridge and a plugin that fails at ADD, and writes its verbs
/// to a file.
fn failing(host: &Host) -> Tool<'_> {
    let tool = host.tool();
    let body = "echo $CNI_COMMAND >>/run/test/verbs; [ $CNI_COMMAND != ADD ] || \
         { echo '{\"cniVersion\": \"1.0.0\", \"code\": 111, \"msg\": \"broken\"}'; exit 1; }";
    host.script("fails", body);
    let bridge = host.bridge_v4().config().clone();
    tool.configure("pods", &[bridge, json!({"type": "fails"})]);
    tool
}

fn verbs() -> String {
    fs::read_to_string("/run/test/verbs").unwrap()
}

#[test]
fn failed_add_leaves_nothing_and_reports_its_own_error() {
    let host = Host::new();
    let tool = failing(&host);
    let a = host.sandbox("a");
    let outcome = failure(
        &tool.on("add", "pods", &a),
        &["plugin fails: broken (code 111)"],
    );
    assert!(!outcome.stderr.contains("DEL"), "{outcome:#?}");
    assert_eq!(
        (verbs().as_str(), a.links()),
        ("ADD\nDEL\n", vec!["lo".to_owned()])
    );
    assert!(host.leases("pods").is_empty());
    // The error of ADD stays the first one if DEL fails, too.
    host.script("fails", "echo broken; exit 1");
    let outcome = failure(
        &tool.on("add", "pods", &a),
        &["DEL failed, too: ", "cnitool del pods"],
    );
    assert!(
        outcome.stderr.find("broken") < outcome.stderr.find("DEL"),
        "{outcome:#?}"
    );
}

/// The interface may be that of a live pod, whose cached result is elsewhere.
#[test]
fn failed_add_deletes_nothing_that_was_there_and_prints_a_command_for_a_shell() {
    let host = Host::new();
    let tool = failing(&host);
    let a = host.sandbox("a b");
    let bridge = host.bridge_v4().config().clone();
    tool.configure("whole", &[bridge]);
    tool.on("add", "whole", &a).ok();
    fs::remove_dir_all(tool.results()).unwrap();
    let before = host.snapshot();
    let outcome = failure(
        &tool.on("add", "whole", &a),
        &["is attached already by veth"],
    );
    host.snapshot().assert_same_as(&before);
    let (reason, command) = outcome.stderr.trim().rsplit_once("; to call it: ").unwrap();
    assert!(reason.ends_with(" left something"), "{outcome:#?}");
    assert_eq!(command, "cnitool del whole '/run/netns/a b' --ifname eth0");
    tool.in_shell(command);
    assert!(host.leases("whole").is_empty());
}

#[test]
fn taken_interface_has_the_name_of_its_owner() {
    let host = Host::new();
    let tool = host.pods();
    let a = host.sandbox("a");
    tool.add("pods", &a, &[]);
    let ipam = json!({"type": "host-local", "subnet": "10.9.0.0/24"});
    tool.configure("other", &[json!({"type": "ptp", "ipam": ipam})]);
    let outcome = failure(
        &tool.on("add", "other", &a),
        &[
            "has an interface eth0 already; it belongs to container cnitool-",
            "on network pods: DEL",
        ],
    );
    assert!(
        outcome
            .stderr
            .contains("the sandbox had an interface eth0 before"),
        "{outcome:#?}"
    );
    assert!(a.links().contains(&"eth0".to_owned()));
    let b = host.sandbox("b");
    host.ip("link add foo type veth peer name eth0 netns b");
    failure(
        &tool.on("add", "other", &b),
        &["another program made it, with the other end foo"],
    );
}

#[test]
fn wrong_values_are_named_with_what_is_expected() {
    let host = Host::new();
    let tool = host.tool();
    let a = host.sandbox("a");
    let bridge = host.bridge_v4().config().clone();
    tool.configure("pods", std::slice::from_ref(&bridge));
    host.ip("link add other type bridge");
    host.ip("address add 10.1.0.1/16 dev other");
    host.ip("link set other up");
    let words =
        ["this host has the gateway 10.1.0.1 as 10.1.0.1/16 on other; choose another subnet"];
    failure(&tool.on("add", "pods", &a), &words);
    host.ip("link delete other");
    let mut flat = bridge.clone();
    flat["ipam"]["ranges"] = json!([{"subnet": "10.1.0.0/24"}]);
    let bandwidth = json!({"type": "bandwidth", "ingressRate": "20M"});
    let cases: [(&[Value], &[&str]); 2] = [
        (
            &[bridge.clone(), bandwidth],
            &["ingressRate: ", "such as 20000000, found \"20M\""],
        ),
        (
            &[flat],
            &[
                "ipam.ranges[0]: ",
                r#"[[{"subnet": "10.1.0.0/24"}]], found an object"#,
            ],
        ),
    ];
    for (plugins, words) in cases {
        tool.configure("pods", plugins);
        failure(&tool.on("add", "pods", &a), words);
    }
}

#[test]
fn variables_without_effect_and_missing_rights_are_named() {
    let host = Host::new();
    let tool = host.pods();
    let a = host.sandbox("a");
    let nowhere = tool.on("add", "pods", &a).env("CNI_PATH", "/nosuch");
    failure(
        &nowhere,
        &["plugin bridge is not in /nosuch (CNI_PATH), which is no directory"],
    );
    let user = format!("--reuid={}", other_user());
    if user != "--reuid=0" {
        let setpriv = ["setpriv", &user, "--clear-groups"].map(str::to_owned);
        let add = tool.on("add", "pods", &a).under(&setpriv);
        failure(&add, &["cnitool needs root: run it as root"]);
    }
    let unknown = json!({"portMapping": []}).to_string();
    let outcome = tool.on("add", "pods", &a).env("CAP_ARGS", unknown).run();
    let words = "CAP_ARGS: no plugin of network pods gets portMapping; the capabilities of its list \
         are: portMappings";
    assert!(outcome.stderr.contains(words), "{outcome:#?}");
    outcome.ok();
}

#[test]
fn limit_takes_what_ps_prints_or_a_namespace() {
    let host = Host::new();
    let scene = Limited::new(&host, &asked(10_000_000, 10_000_000));
    let page = scene.tool.lines(&["ps"]);
    let id = page[1].split_whitespace().nth(1).unwrap();
    scene
        .tool
        .run(&["limit", "pods", id, "--egress", "20M"])
        .ok();
    assert_eq!(scene.rates()[1], Some(2_500_000));
    let path = scene.a.path().to_str().unwrap();
    scene
        .tool
        .run(&["limit", "pods", path, "--egress", "30M"])
        .ok();
    assert_eq!(scene.rates()[1], Some(3_750_000));
    for id in ["0123456789ab1", "0123456789ab2"] {
        let sandbox = host.sandbox(id);
        scene.tool.remember("pods", (&sandbox, &Value::Null));
    }
    let both = scene
        .tool
        .run(&["limit", "pods", "0123456789ab", "--egress", "1M"]);
    failure(
        &both,
        &["0123456789ab means 2 containers of network pods: give more characters"],
    );
    let none = scene
        .tool
        .run(&["limit", "pods", "/run/netns/none", "--egress", "1M"]);
    failure(
        &none,
        &["/run/netns/none has no cached result of eth0 on network pods: see cnitool ps"],
    );
    let negative = scene.tool.run(&["limit", "pods", id, "--egress", "-5"]);
    failure(
        &negative,
        &["expected none, or a quantity from 1k to 1P bit/s"],
    );
}

#[test]
fn check_and_del_take_what_ps_prints_and_del_says_if_it_knows_nothing() {
    let host = Host::new();
    let scene = Limited::new(&host, &asked(10_000_000, 10_000_000));
    let page = scene.tool.lines(&["ps"]);
    let id = page[1].split_whitespace().nth(1).unwrap();
    scene.tool.run(&["check", "pods", id]).ok();
    let unknown = scene.tool.run(&["del", "pods", "/run/netns/none"]).run();
    assert!(
        unknown
            .stderr
            .contains("/run/netns/none has no cached result")
    );
    assert!(unknown.status.success() && scene.a.has_link("eth0"));
    scene.tool.run(&["del", "pods", id]).ok();
    assert!(!scene.a.has_link("eth0"));
    let missing = scene.tool.run(&["add", "pods", "/run/netns/none"]).run();
    assert!(
        !missing.stderr.contains("DEL was not called"),
        "{missing:?}"
    );
}

#[test]
fn agent_without_parts_says_so() {
    let host = Host::new();
    for sections in [json!({}), json!({"repair": {"enabled": false}})] {
        let agent = Agent::start(&host, &sections);
        agent.says("cni-agent: nothing to do: ");
        agent.is_up();
        agent.end();
    }
}
