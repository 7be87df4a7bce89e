//! bridge with IPAM plugins that never end, print without end, or do not read their input.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use serde_json::json;
use tests::{Host, Network, Place as _, eventually};

/// Returns the network `pods` with a shell script as its IPAM plugin and a time limit of half a
/// second. The script records each verb and then runs `body`.
fn scripted<'h>(host: &'h Host, body: &str) -> Network<'h> {
    host.script("scripted", &format!("echo $CNI_COMMAND >> {LOG}\n{body}"));
    let network = host.bridge().with("ipam", json!({"type": "scripted"}));
    network.with("ipamTimeout", "500ms")
}

fn on_add(script: &str) -> String {
    format!("[ $CNI_COMMAND = ADD ] || exit 0\n{script}")
}

fn calls() -> String {
    let log = fs::read_to_string(LOG).unwrap_or_default();
    log.trim().replace('\n', " ")
}

fn print_lease() -> String {
    let lease = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.5.0.7/24"}]});
    format!("echo '{lease}'")
}

/// Checks that ADD with such an IPAM plugin fails with this code and these words. DEL of the plugin
/// must run, and nothing may be left, not even a process.
#[track_caller]
fn expect_failure(script: &str, code: u64, words: &[&str]) {
    let host = Host::new();
    let a = host.sandbox("a");
    host.bridge().add(&a);
    host.bridge().del(&a);
    expect_no_process(&host);
    let before = host.snapshot();
    let start = Instant::now();
    let refusal = scripted(&host, &on_add(script)).on("ADD", &a).error();
    refusal.expect(code, &[&["scripted"], words].concat());
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    assert_eq!(calls(), "ADD DEL");
    expect_no_process(&host);
    host.snapshot().assert_same_as(&before);
    assert_eq!(a.links(), ["lo"]);
}

#[test]
fn a_delegate_that_never_ends_is_killed_and_asked_to_release() {
    expect_failure("exec sleep 1000", 11, &["500ms", "ipamTimeout"]);
}

#[test]
fn what_such_a_delegate_started_is_killed_as_well() {
    expect_failure("sleep 1000 & sleep 1000 & wait", 11, &["500ms"]);
}

#[test]
fn a_delegate_that_leased_and_never_ends_did_not_lease() {
    expect_failure(&format!("{}; sleep 1000", print_lease()), 11, &["500ms"]);
    let closed = format!("{}; exec >&-; sleep 1000", print_lease());
    expect_failure(&closed, 11, &["500ms"]);
}

#[test]
fn a_delegate_that_does_not_stop_talking_is_killed() {
    expect_failure("exec yes", 5, &["16 MiB"]);
}

#[test]
fn an_error_of_a_megabyte_is_cut() {
    let host = Host::new();
    let a = host.sandbox("a");
    let script = on_add("head -c 1000000 /dev/zero; exit 3");
    let network = scripted(&host, &script).with("ipamTimeout", "10s");
    let refusal = network.on("ADD", &a).error();
    refusal.expect(100, &["scripted", "exit status: 3"]);
    assert!(refusal.details.len() < 1_000, "{}", refusal.details.len());
}

#[test]
fn output_of_a_delegate_without_a_result_is_quoted() {
    expect_failure("exit 0", 6, &["printed nothing"]);
    expect_failure("echo plugh", 6, &["plugh"]);
}

#[test]
fn every_verb_ends_though_the_delegate_does_not() {
    let host = Host::new();
    let a = host.sandbox("a");
    let lease = format!("[ $CNI_COMMAND = ADD ] && {} && exit", print_lease());
    let network = scripted(&host, &format!("{lease}; exec sleep 1000"));
    let network = network.with("cniVersion", "1.1.0");
    let result = network.add(&a);
    let calls = [
        network.check(&a, &result),
        network.call("STATUS"),
        network.gc(&[&a]),
        network.on("DEL", &a),
    ];
    for call in calls {
        let start = Instant::now();
        call.error().expect(11, &["scripted", "500ms"]);
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    }
    // Only the lease is left, and the next DEL tries to release it again.
    assert_eq!(host.links(), ["cni0", "lo"]);
    expect_no_process(&host);
}

#[test]
fn an_add_ends_though_the_delegate_does_not_release_either() {
    let host = Host::new();
    let a = host.sandbox("a");
    let outcome = scripted(&host, "exec sleep 1000").on("ADD", &a).run();
    outcome.error().expect(11, &["scripted", "500ms"]);
    assert!(
        outcome.stderr.contains("undo: release the lease: scripted"),
        "{outcome:?}"
    );
    assert_eq!(calls(), "ADD DEL");
    expect_no_process(&host);
    assert_eq!(host.links(), ["cni0", "lo"]);
}

#[test]
fn a_grandchild_that_keeps_the_output_open_delays_no_verb() {
    let host = Host::new();
    let a = host.sandbox("a");
    let script = on_add(&format!(
        "sleep 1000 2>&- & echo $! >{LOG}.pid; {}",
        print_lease()
    ));
    let network = scripted(&host, &script).with("ipamTimeout", "1h");
    let start = Instant::now();
    network.add(&a);
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    assert!(a.pings("10.5.0.1") || a.addresses("eth0") == ["10.5.0.7/24"]);
    // A plugin that ended successfully may leave a process that works for it.
    assert_eq!(host.processes(), ["sleep 1000"]);
    let pid = fs::read_to_string(format!("{LOG}.pid")).unwrap();
    host.run("kill", &[pid.trim()]);
    network.del(&a);
}

#[test]
fn a_delegate_need_not_read_its_request() {
    let host = Host::new();
    let a = host.sandbox("a");
    let large = "x".repeat(4 << 20);
    for listen in [
        "exec <&-",
        "",
        "head -c 1 >/dev/null",
        "head -c 200000 /dev/zero | tr '\\0' ' '; cat >/dev/null",
    ] {
        let script = on_add(&format!("{listen}\n{}", print_lease()));
        let network = scripted(&host, &script).with("Unknown", large.as_str());
        let network = network.with("ipamTimeout", "10s");
        network.add(&a);
        assert_eq!(a.addresses("eth0"), ["10.5.0.7/24"], "{listen}");
        network.del(&a);
    }
}

#[test]
fn a_delegate_that_does_not_read_and_does_not_end_is_killed() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = scripted(&host, &on_add("exec sleep 1000"));
    let network = network.with("Unknown", "x".repeat(4 << 20));
    network.on("ADD", &a).error().expect(11, &["scripted"]);
    expect_no_process(&host);
}

#[test]
fn what_cannot_be_executed_is_no_delegate() {
    let host = Host::new();
    let a = host.sandbox("a");
    let plugins = host.dir().join("plugins");
    fs::create_dir(plugins.join("directory")).unwrap();
    File::create(plugins.join("not-executable")).unwrap();
    host.run(
        "mkfifo",
        &["-m", "755", &plugins.join("pipe").display().to_string()],
    );
    for (name, target) in [("dangling", "/nowhere"), ("loop", "loop")] {
        std::os::unix::fs::symlink(target, plugins.join(name)).unwrap();
    }
    for name in ["directory", "not-executable", "pipe", "dangling", "loop"] {
        let network = host.bridge().with("ipam", json!({"type": name}));
        network.on("ADD", &a).error().expect(7, &[name, "CNI_PATH"]);
    }
    host.script("no-format", "");
    fs::write(plugins.join("no-format"), "\u{7f}ELF and no more").unwrap();
    let network = host.bridge().with("ipam", json!({"type": "no-format"}));
    network
        .on("ADD", &a)
        .error()
        .expect(5, &["start", "no-format"]);
    assert_eq!(a.links(), ["lo"]);
}

#[test]
fn an_invalid_timeout_is_refused_and_does_not_prevent_a_release() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.bridge_v4();
    network.add(&a);
    let b = host.sandbox("b");
    for timeout in ["soon", "0s"] {
        let wrong = network.clone().with("ipamTimeout", timeout);
        let refusal = wrong.on("ADD", &b).error();
        refusal.expect(7, &["ipamTimeout", timeout]);
        let outcome = wrong.on("DEL", &a).run();
        outcome.ok();
        assert!(outcome.stderr.contains("ipamTimeout"), "{outcome:?}");
        assert!(host.leases("pods").is_empty());
        network.add(&a);
    }
}

#[test]
fn a_process_that_keeps_the_lock_on_the_leases_delays_verbs_only_for_a_time() {
    let host = Host::new();
    let (a, b) = (host.sandbox("a"), host.sandbox("b"));
    let network = host.bridge_v4().with("ipam.lockTimeout", "300ms");
    network.add(&a);
    let before = host.snapshot();
    let lock = File::open(host.lease_dir().join("pods/lock")).unwrap();
    lock.lock().unwrap();
    network.on("ADD", &b).error().expect(11, &["lock", "300ms"]);
    assert_eq!(b.links(), ["lo"]);
    host.snapshot().assert_same_as(&before);
    // The links are deleted; the lease stays until the next DEL.
    network.on("DEL", &a).error().expect(11, &["lock", "300ms"]);
    assert_eq!(host.leases("pods").len(), 1);
    drop(lock);
    network.del(&a);
    assert!(host.leases("pods").is_empty());
}

/// Every change of a link on the machine takes the kernel's one lock on links.
#[test]
fn links_that_others_make_and_delete_by_the_hundred_do_no_harm() {
    let host = Host::new();
    let elsewhere = host.sandbox("elsewhere");
    let number =
        |number: usize| format!("link add v{number} group 7 type veth peer name w{number}\n");
    let make: String = (0..200).map(number).collect();
    let batch = host.dir().join("batch");
    fs::write(&batch, format!("{make}link delete group 7\n").repeat(3)).unwrap();
    let pods: Vec<_> = (0..6)
        .map(|number| host.sandbox(&format!("p{number}")))
        .collect();
    let network = host.bridge();
    std::thread::scope(|scope| {
        let churn = scope.spawn(|| elsewhere.run("ip", &["-batch", batch.to_str().unwrap()]));
        while !churn.is_finished() {
            tests::at_once(&pods, |pod| network.add(pod));
            assert!(pods.iter().all(|pod| pod.addresses("eth0").len() == 2));
            tests::at_once(&pods, |pod| network.del(pod));
        }
    });
    assert_eq!(host.links(), ["cni0", "lo"]);
    assert!(host.leases("pods").is_empty());
}

/// Waits for the detached process of DEL.
#[track_caller]
fn expect_no_process(host: &Host) {
    let is_none = eventually(|| host.processes().is_empty());
    assert!(is_none, "{:?}", host.processes());
}

const LOG: &str = "/run/test/calls";

/// Time limit; a run takes a tenth of it, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);
