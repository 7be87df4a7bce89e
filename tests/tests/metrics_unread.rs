//! cnitool metrics on nodes that cannot be read as a whole, and with hostile names.

use std::fs;

use serde_json::{Value, json};
use tests::metered::{attach, both};
use tests::open_metrics::Metrics;
use tests::{Host, Tool};

#[test]
fn names_of_pods_break_no_line() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = both(&host);
    attach(&tool, &a, 8080);
    let [entry] = entries(&tool).try_into().unwrap();
    let text = fs::read_to_string(&entry).unwrap();
    let mut cached: Value = serde_json::from_str(&text).unwrap();
    let hostile = "w\"} 1\n# EOF\n\\\u{0}\u{1b}[2J\u{202e}";
    cached["cniArgs"] = json!([
        ["K8S_POD_NAMESPACE", "x".repeat(100_000)],
        ["K8S_POD_NAME", hostile],
    ]);
    fs::write(&entry, cached.to_string()).unwrap();
    let metrics = tool.metrics();
    let shown = "w\"} 1\u{fffd}# EOF\u{fffd}\\\u{fffd}\u{fffd}[2J\u{202e}";
    assert!(metrics.values_of("pod").contains(shown), "{metrics:#?}");
    let namespaces = metrics.values_of("namespace");
    assert_eq!(
        namespaces.into_iter().collect::<Vec<_>>(),
        ["x".repeat(253)]
    );
}

#[test]
fn without_any_network_everything_is_read_and_nothing_counted() {
    let host = Host::new();
    fs::remove_dir_all(host.dir().join("net.d")).ok();
    let outcome = host.plugin("cnitool").argument("metrics");
    let outcome = outcome.env("NETCONFPATH", "/nowhere").run();
    assert!(
        outcome.status.success() && outcome.stderr.is_empty(),
        "{outcome:#?}"
    );
    let metrics = Metrics::parse(&outcome.stdout);
    assert_eq!(metrics.all("cni_unread", &[]), [0; 6]);
    assert_eq!(
        metrics.all("cni_table_condition", &[("condition", "absent")]),
        [1; 7]
    );
    assert_eq!(metrics.one("cni_pods_included", &[]), 0);
    assert_eq!(metrics.all("cni_attachments", &[]), [0_u64; 0]);
}

#[test]
fn what_cannot_be_read_is_absent_and_not_zero() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = both(&host);
    attach(&tool, &a, 8080);
    fs::write(tool.results().join("broken"), "{").unwrap();
    tool.write("broken.conflist", "{");
    let broken = tool.metrics();
    assert_eq!(broken.one("cni_cache_entries_invalid", &[]), 1);
    assert_eq!(broken.one("cni_configuration_files_invalid", &[]), 1);
    assert_eq!(broken.one("cni_attachments", &[]), 1);
    fs::remove_dir_all(tool.results()).unwrap();
    symlink_loop(&tool);
    let log = host.dir().join("log");
    fs::create_dir(&log).unwrap();
    let outcome = tool.run(&["metrics"]).env("CNI_LOG_FILE", &log).run();
    assert!(outcome.status.success(), "{outcome:#?}");
    let said = ["results", "it is not a regular file"].map(|it| outcome.stderr.contains(it));
    assert_eq!(said, [true; 2], "{outcome:#?}");
    let unread = Metrics::parse(&outcome.stdout);
    for (part, value) in [("cache", 1), ("log", 1), ("leases", 0), ("links", 0)] {
        assert_eq!(unread.one("cni_unread", &[("part", part)]), value, "{part}");
    }
    for name in ["cni_attachments", "cni_cache_entries_invalid"] {
        assert_eq!(unread.all(name, &[]), [0_u64; 0], "{name}");
    }
    // The tags of links still show the pod's traffic, without its name.
    let egress = [("network", "pods"), ("pod", ""), ("direction", "egress")];
    assert_eq!(unread.all("cni_pod_bytes_total", &egress).len(), 1);
}

/// Puts a link in place of the cache that leads to itself.
fn symlink_loop(tool: &Tool<'_>) {
    std::os::unix::fs::symlink(tool.results(), tool.results()).unwrap();
}

#[test]
fn without_permission_for_nf_tables_its_metrics_are_absent() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = both(&host);
    attach(&tool, &a, 8080);
    let outcome = tool.run(&["metrics"]).powerless().run();
    assert!(outcome.status.success(), "{outcome:#?}");
    let metrics = Metrics::parse(&outcome.stdout);
    assert_eq!(metrics.one("cni_unread", &[("part", "firewall")]), 1);
    for name in [
        "cni_host_ports",
        "cni_table_condition",
        "cni_table_elements",
        "cni_attachments_lacking_elements",
    ] {
        assert_eq!(metrics.all(name, &[]), [0_u64; 0], "{name}");
    }
    assert_eq!(metrics.one("cni_attachments", &[]), 1);
    assert_eq!(metrics.all("cni_pod_bytes_total", &[("pod", "a")]).len(), 2);
}

fn entries(tool: &Tool<'_>) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(tool.results()).unwrap();
    entries.map(|it| it.unwrap().path()).collect()
}
