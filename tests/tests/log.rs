//! The log of each invocation, in a configured file.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::thread;

use nix::fcntl::OFlag;
use serde_json::{Value, json};
use tests::faults::Trace;
use tests::{Host, Invocation, Network};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn log(host: &Host) -> PathBuf {
    host.dir().join("cni.log")
}

/// Reads the lines, which must be complete.
#[track_caller]
fn lines(path: &PathBuf) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    let parsed = text.lines().map(|line| {
        let read = serde_json::from_str(line);
        read.unwrap_or_else(|error| panic!("{error}: {line}"))
    });
    parsed.collect()
}

/// Returns the network `pods` of host-local with this log level.
fn logging<'h>(host: &'h Host, level: &str) -> Network<'h> {
    host.host_local()
        .with("logFile", log(host).to_str().unwrap())
        .with("logLevel", level)
}

fn steps(line: &Value) -> Vec<String> {
    let steps = line["steps"].as_array().unwrap_or_else(|| panic!("{line}"));
    let named = steps.iter().map(|it| {
        assert!(it["us"].is_u64(), "{it}");
        match &it["undo"] {
            Value::Null => it["step"].as_str().unwrap().to_owned(),
            undone => format!("undo: {}", undone.as_str().unwrap()),
        }
    });
    named.collect()
}

#[test]
fn each_verb_of_each_plugin_is_one_line_with_its_attachment() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.pods();
    for verb in ["add", "check", "del"] {
        tool.on(verb, "pods", &a)
            .env("CNI_LOG_FILE", log(&host))
            .env("TRACEPARENT", format!("00-{TRACE}-00f067aa0ba902b7-01"))
            .args("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;IgnoreUnknown=1")
            .env("CAP_ARGS", r#"{"portMappings": []}"#)
            .ok();
    }
    let lines = lines(&log(&host));
    let who = |line: &Value| format!("{} {}", word(line, "verb"), word(line, "plugin"));
    let expected = [
        "ADD host-local",
        "ADD bridge",
        "ADD portmap",
        "CHECK host-local",
        "CHECK bridge",
        "CHECK portmap",
        "DEL portmap",
        "DEL host-local",
        "DEL bridge",
    ];
    assert_eq!(lines.iter().map(who).collect::<Vec<_>>(), expected);
    for line in &lines {
        for (key, value) in SUBJECT {
            assert_eq!(word(line, key), value, "{key}: {line}");
        }
        // cnitool derives the container ID from the sandbox's path.
        assert_eq!(line["container"], lines[0]["container"]);
        assert!(word(line, "time").starts_with("20"), "{line}");
        assert!(line["durationUs"].as_u64() > Some(0), "{line}");
        assert!(line["steps"].is_null() && line["config"].is_null());
    }
    let mode = fs::metadata(log(&host)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// Fields of each line of one attachment.
const SUBJECT: [(&str, &str); 7] = [
    ("level", "info"),
    ("version", env!("CARGO_PKG_VERSION")),
    ("network", "pods"),
    ("interface", "eth0"),
    ("pod", "shop/web-0"),
    ("traceId", TRACE),
    ("outcome", "ok"),
];

fn word<'l>(line: &'l Value, key: &str) -> &'l str {
    line[key]
        .as_str()
        .unwrap_or_else(|| panic!("{key}: {line}"))
}

#[test]
fn verbs_without_a_sandbox_are_logged_too() {
    let host = Host::new();
    let network = host.loopback().with("cniVersion", "1.1.0");
    let run = |call: Invocation| call.env("CNI_LOG_FILE", log(&host)).run();
    assert!(run(network.call("STATUS")).status.success());
    assert!(run(network.gc(&[])).status.success());
    assert!(run(network.call("VERSION")).status.success());
    let verbs: Vec<_> = lines(&log(&host))
        .iter()
        .map(|it| it["verb"].clone())
        .collect();
    assert_eq!(verbs, ["STATUS", "GC", "VERSION"]);
    run(host.plugin("loopback"));
    assert_eq!(lines(&log(&host)).len(), 3, "run by hand it does nothing");
}

#[test]
fn a_failure_is_logged_as_on_standard_output() {
    let host = Host::new();
    let network = logging(&host, "error").with("ipam.ranges", json!([[{"subnet": "10.1.0.0/30"}]]));
    network.call_for("ADD", "c1").ok();
    let refusal = network.call_for("ADD", "c2").error();
    let lines = lines(&log(&host));
    assert_eq!(lines.len(), 1, "success is no error: {lines:?}");
    let line = &lines[0];
    assert_eq!(
        (&line["level"], &line["outcome"]),
        (&json!("error"), &json!("error"))
    );
    assert_eq!(line["code"], refusal.code);
    assert_eq!(line["msg"], refusal.msg);
    assert_eq!(
        line["details"].as_str().unwrap_or_default(),
        refusal.details
    );
}

#[test]
fn an_invalid_request_is_logged_to_the_file_of_the_environment() {
    let host = Host::new();
    let network = host.host_local();
    let unknown_version = network.clone().with("cniVersion", "9");
    let refused = [
        network.call_for("ADD", "../c").config(network.config()),
        network.call_for("ADD", "c1").stdin("{"),
        unknown_version.call_for("ADD", "c1"),
    ];
    for refused in refused {
        refused.env("CNI_LOG_FILE", log(&host)).error();
    }
    let codes: Vec<_> = lines(&log(&host))
        .iter()
        .map(|it| it["code"].clone())
        .collect();
    assert_eq!(codes, [4, 6, 1]);
    // The configuration alone suffices, once it can be read.
    let unknown_version = logging(&host, "info").with("cniVersion", "9");
    unknown_version.call_for("ADD", "c1").error();
    assert_eq!(lines(&log(&host))[3]["network"], "pods");
}

/// Returns a bridge that logs at debug, with confidential values.
fn debugging(host: &Host) -> Network<'_> {
    let annotations = json!({"io.kubernetes.cri.pod-annotations": {"example.com/x": "s3cret"}});
    host.bridge()
        .with("logFile", log(host).to_str().unwrap())
        .with("logLevel", "debug")
        .with("ipam.password", "s3cret")
        .with("runtimeConfig", annotations)
}

#[test]
fn debug_logs_the_steps_and_the_configuration_without_secrets() {
    let host = Host::new();
    let a = host.sandbox("a");
    debugging(&host).add(&a);
    let text = fs::read_to_string(log(&host)).unwrap();
    assert!(!text.contains("s3cret"), "{text}");
    let lines = lines(&log(&host));
    let line = &lines[1];
    assert_eq!(steps(line), STEPS_OF_ADD);
    assert_eq!(line["config"]["ipam"]["type"], "host-local");
    assert_eq!(line["config"]["ipam"]["password"], "***");
    let each = line["steps"].as_array().unwrap().iter();
    let sum: u64 = each.filter_map(|it| it["us"].as_u64()).sum();
    let whole = line["durationUs"].as_u64().unwrap();
    let rounding = STEPS_OF_ADD.len() as u64;
    assert!(sum <= whole && whole - sum <= rounding, "{line}");
}

const STEPS_OF_ADD: [&str; 12] = [
    "read the request",
    "look into the sandbox",
    "ensure the bridge",
    "lease addresses",
    "make the pair",
    "protect the pair",
    "ensure the gateways",
    "configure the sandbox",
    "bring up the port",
    "wait for IPv6",
    "announce the addresses",
    "answer",
];

#[test]
fn debug_logs_the_rollback() {
    let host = Host::new();
    let a = host.sandbox("a");
    let unreachable = json!([{"dst": "10.9.0.0/16", "gw": "172.31.0.1"}]);
    let failing = debugging(&host).with("ipam.routes", unreachable);
    failing.on("ADD", &a).error();
    let lines = lines(&log(&host));
    let steps = steps(lines.last().unwrap());
    let rollback = [
        "configure the sandbox",
        "undo: remove the gateway address",
        "undo: remove the gateway address",
        "undo: remove nf_tables elements",
        "undo: delete the host link",
        "undo: release the lease",
    ];
    assert!(steps.ends_with(&rollback.map(str::to_owned)), "{steps:?}");
}

#[test]
fn lines_of_32_writers_at_once_stay_whole_while_the_file_is_rotated() {
    let host = Host::new();
    let network = logging(&host, "debug");
    let containers: Vec<_> = (0..32).map(|number| format!("c{number}")).collect();
    let mut files: Vec<_> = (0..8)
        .map(|number| host.dir().join(format!("cni.log.{number}")))
        .collect();
    thread::scope(|scope| {
        let run = |container: &String| {
            for _ in 0..ROUNDS {
                network.call_for("ADD", container).ok();
                network.call_for("DEL", container).ok();
            }
        };
        let writers = scope.spawn(move || tests::at_once(&containers, run));
        for old in &files {
            // logrotate does this: open files stay in use, and the next opening creates a new file.
            assert!(tests::eventually(|| log(&host).exists()));
            fs::rename(log(&host), old).unwrap();
        }
        writers.join().unwrap();
    });
    files.extend(Some(log(&host)).filter(|it| it.exists()));
    let lines: Vec<_> = files.iter().flat_map(lines).collect();
    for container in (0..32).map(|number| format!("c{number}")) {
        let of_one = lines.iter().filter(|it| it["container"] == container);
        assert_eq!(of_one.count(), 2 * ROUNDS, "{container}");
    }
}

/// Rounds of an ADD and a DEL for each container.
const ROUNDS: usize = 4;

#[test]
fn what_cannot_be_written_fails_no_verb_and_is_one_line_on_standard_error() {
    let host = Host::new();
    let target = host.dir().join("precious");
    fs::write(&target, "precious").unwrap();
    let link = host.dir().join("link");
    symlink(&target, &link).unwrap();
    let dangling = host.dir().join("dangling");
    symlink(host.dir().join("nowhere"), &dangling).unwrap();
    let pipe = host.dir().join("pipe");
    tests::run("mkfifo", &[pipe.to_str().unwrap()]);
    let mut refused = vec![link, dangling, pipe, host.dir().join("no/such/directory")];
    refused.extend(["/dev/null", "/dev/full", "/run", "relative"].map(PathBuf::from));
    for path in refused {
        for (network, variable) in [
            (
                host.host_local().with("logFile", path.to_str().unwrap()),
                "",
            ),
            (host.host_local(), path.to_str().unwrap()),
        ] {
            let add = network
                .call_for("ADD", "c1")
                .env("CNI_LOG_FILE", variable)
                .run();
            assert!(add.ok()["ips"].is_array(), "{add:?}");
            let told: Vec<_> = add
                .stderr
                .lines()
                .filter(|it| it.contains(path.to_str().unwrap()))
                .collect();
            assert_eq!(told.len(), 1, "{add:?}");
            network
                .call_for("DEL", "c1")
                .env("CNI_LOG_FILE", variable)
                .ok();
        }
    }
    assert_eq!(fs::read_to_string(target).unwrap(), "precious");
    assert!(!host.dir().join("nowhere").exists());
}

#[test]
fn a_full_disk_fails_no_verb() {
    let host = Host::new();
    let small = host.dir().join("small");
    fs::create_dir(&small).unwrap();
    host.tmpfs(&small, "size=4k");
    let file = small.join("cni.log");
    fs::write(&file, vec![b'\n'; 4096]).unwrap();
    let network = host.host_local().with("logFile", file.to_str().unwrap());
    let add = network.call_for("ADD", "c1").run();
    assert!(
        add.ok()["ips"].is_array() && add.stderr.contains("logFile"),
        "{add:?}"
    );
}

#[test]
fn without_a_file_nothing_is_written_and_the_configuration_can_turn_it_off() {
    let host = Host::new();
    let network = host.host_local();
    let only_level = network.clone().with("logLevel", "debug");
    let empty = network.clone().with("logFile", "");
    let calls = [
        only_level.call_for("ADD", "c1"),
        network.call_for("DEL", "c1").env("CNI_LOG_LEVEL", "debug"),
        empty.call_for("ADD", "c1").env("CNI_LOG_FILE", log(&host)),
        network.call_for("DEL", "c1").env("CNI_LOG_FILE", ""),
    ];
    for call in calls {
        let outcome = call.run();
        assert!(
            outcome.status.success() && outcome.stderr.is_empty(),
            "{outcome:?}"
        );
    }
    assert!(!log(&host).exists());
}

#[test]
fn a_file_that_is_there_keeps_its_mode_and_wins_over_the_environments() {
    let host = Host::new();
    fs::write(log(&host), "").unwrap();
    fs::set_permissions(log(&host), Permissions::from_mode(0o640)).unwrap();
    let other = host.dir().join("other.log");
    let add = logging(&host, "info")
        .call_for("ADD", "c1")
        .env("CNI_LOG_FILE", &other);
    add.env("CNI_LOG_LEVEL", "debug").ok();
    assert_eq!(lines(&log(&host)).len(), 1);
    assert!(!other.exists());
    assert_eq!(
        fs::metadata(log(&host)).unwrap().permissions().mode() & 0o777,
        0o640
    );
}

#[test]
fn a_line_is_one_write_to_a_file_opened_once() {
    let host = Host::new();
    let network = host.loopback().with("cniVersion", "1.1.0");
    let network = network.with("logFile", log(&host).to_str().unwrap());
    let trace = host.dir().join("trace");
    Trace::of(&network.call("STATUS"), &trace);
    let text = fs::read_to_string(&trace).unwrap();
    for call in [" openat(", " write("] {
        let calls = text
            .lines()
            .filter(|it| it.contains(call) && it.contains("cni.log"));
        assert_eq!(calls.count(), 1, "{call}: {text}");
    }
}

#[test]
fn a_pipe_gets_no_log() {
    let host = Host::new();
    let pipe = host.dir().join("pipe");
    tests::run("mkfifo", &[pipe.to_str().unwrap()]);
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(O_NONBLOCK);
    let mut reader = options.open(&pipe).unwrap();
    let network = host.host_local().with("logFile", pipe.to_str().unwrap());
    let add = network.call_for("ADD", "c1").run();
    assert!(add.ok()["ips"].is_array(), "{add:?}");
    assert!(add.stderr.contains("no regular file"), "{add:?}");
    let nothing = reader.read(&mut [0; 1]).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
}

const O_NONBLOCK: i32 = OFlag::O_NONBLOCK.bits();
