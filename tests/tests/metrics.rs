//! cnitool metrics: numbers compared with those of the kernel and the disk.

use std::fs;

use serde_json::{Value, json};
use tests::metered::{attach, both, limited};
use tests::open_metrics::Metrics;
use tests::ports::rules;
use tests::{Host, Place, Sandbox, Tool};

/// Returns the host link of a pod, by `cnitool ps`.
fn host_link(tool: &Tool<'_>, pod: &Sandbox) -> String {
    let rows = tool.ps();
    let row = rows.iter().find(|it| it["pod"]["name"] == pod.name());
    row.unwrap()["hostLink"].as_str().unwrap().to_owned()
}

/// Sends more than the limits let pass.
fn flood(pod: &Sandbox) {
    let words = [
        "-n", "-q", "-c", "40", "-s", "8000", "-i", "0.002", "-W", "1",
    ];
    pod.run("ping", &[&words[..], &["10.1.0.1"]].concat());
}

/// Returns the kernel's numbers for one direction, in the order of `NUMBERS`. `side` is that of
/// the host's `link`; the limit is that of the link `limited` in `place`.
fn of_kernel(
    host: &Host,
    (link, side): (&str, &str),
    (place, limited): (&impl Place, &str),
) -> Vec<u64> {
    let counted = &host.ip_json(&format!("-statistics link show dev {link}"))[0]["stats64"][side];
    let limit = place.tc(&format!("-statistics -json qdisc show dev {limited} root"));
    let limit: Value = serde_json::from_str(&limit).unwrap();
    let limit = &limit[0];
    let numbers = [
        &counted["bytes"],
        &counted["packets"],
        &counted["dropped"],
        &limit["drops"],
        &limit["overlimits"],
        &limit["backlog"],
        &limit["options"]["rate"],
    ];
    numbers.map(|it| it.as_u64().unwrap()).to_vec()
}

const NUMBERS: [&str; 7] = [
    "cni_pod_bytes_total",
    "cni_pod_packets_total",
    "cni_pod_dropped_packets_total",
    "cni_pod_limit_dropped_packets_total",
    "cni_pod_limit_overlimits_total",
    "cni_pod_limit_backlog_bytes",
    "cni_pod_limit_bytes_per_second",
];

#[test]
fn traffic_and_limits_of_pods_are_those_that_the_kernel_counts() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let tool = both(&host);
    attach(&tool, &a, 8080);
    attach(&tool, &b, 8081);
    flood(&a);
    for pod in [&a, &b] {
        let host_link = host_link(&tool, pod);
        let kernel = || {
            let ingress = of_kernel(&host, (&host_link, "tx"), (&host, &host_link));
            let egress = of_kernel(&host, (&host_link, "rx"), (pod, "eth0"));
            [ingress, egress]
        };
        let found = || {
            let metrics = tool.metrics();
            ["ingress", "egress"].map(|direction| {
                let labels = [
                    ("namespace", "shop"),
                    ("pod", pod.name()),
                    ("network", "pods"),
                    ("interface", "eth0"),
                    ("direction", direction),
                ];
                NUMBERS.map(|it| metrics.one(it, &labels)).to_vec()
            })
        };
        // The kernel may send packets of its own meanwhile, so the numbers are compared once they
        // stay the same.
        let is_same = tests::eventually(|| {
            let before = kernel();
            let found = found();
            before == kernel() && before == found
        });
        assert!(is_same, "{:#?} {:#?}", kernel(), found());
    }
    let metrics = tool.metrics();
    let egress = [("pod", "a"), ("direction", "egress")];
    assert!(metrics.one("cni_pod_limit_dropped_packets_total", &egress) > 0);
    assert_eq!(metrics.one(NUMBERS[6], &egress), 125_000);
    assert_eq!(metrics.one("cni_pods_included", &[]), 2);
    assert_eq!(metrics.one("cni_pods_left_out", &[]), 0);
}

#[test]
fn a_sandbox_that_cannot_be_entered_has_no_metrics_of_its_egress_limit() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = both(&host);
    attach(&tool, &a, 8080);
    let values = |what: &str, direction: &str| {
        let metrics = tool.metrics();
        metrics.all(what, &[("pod", "a"), ("direction", direction)])
    };
    assert_eq!(values(NUMBERS[6], "egress").len(), 1);
    // A process still holds the namespace.
    let _inhabitant = a.inhabitant();
    a.unmount();
    for what in &NUMBERS[3..] {
        assert_eq!(values(what, "egress"), [0_u64; 0], "{what}");
        assert_eq!(values(what, "ingress").len(), 1, "{what}");
    }
    for what in &NUMBERS[..3] {
        assert_eq!(values(what, "egress").len(), 1, "{what}");
    }
}

#[test]
fn a_limit_for_some_subnets_counts_only_their_packets() {
    let host = Host::new();
    let a = host.sandbox("a");
    let shaped = json!({"ingressRate": 1_000_000, "shapedSubnets": ["10.1.0.0/24"]});
    let tool = limited(&host, &shaped);
    attach(&tool, &a, 8080);
    flood(&a);
    let rows = tool.ps();
    let host_link = rows[0]["hostLink"].as_str().unwrap();
    let number = |what: &str, word: &str| {
        // iproute2 prints no valid JSON of HTB classes.
        let shown = host.tc(&format!("-statistics {what} dev {host_link}"));
        let (_, own) = shown.split_once("b0:1 ").unwrap();
        let (_, after) = own.split_once(word).unwrap();
        let number = after.split([',', ' ']).next().unwrap();
        number.parse::<u64>().unwrap()
    };
    // The TBF below the class also counts what an fq_codel drops.
    let counted = [
        number("qdisc show", "dropped "),
        number("class show", "overlimits "),
    ];
    let metrics = tool.metrics();
    let ingress = [("pod", "a"), ("direction", "ingress")];
    let found = [3, 4].map(|it: usize| metrics.one(NUMBERS[it], &ingress));
    assert_eq!(found, counted);
    assert!(found[1] > 0, "{found:?}");
    assert_eq!(
        metrics.all(NUMBERS[6], &[("direction", "egress")]),
        [0_u64; 0]
    );
}

#[test]
fn addresses_are_those_of_the_directory_and_of_the_cooldown() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let tool = both(&host);
    attach(&tool, &a, 8080);
    attach(&tool, &b, 8081);
    tool.on("del", "pods", &b).ok();
    let leases = host.lease_dir().join("pods");
    fs::write(leases.join("10.1.0.9"), "").unwrap();
    let metrics = tool.metrics();
    let (ipv4, set) = (("range", "10.1.0.1-10.1.0.254"), ("set", "1"));
    let count = |state| {
        metrics.one(
            "cni_addresses",
            &[("network", "pods"), ipv4, ("state", state)],
        )
    };
    let files = fs::read_dir(&leases).unwrap();
    let names = files.map(|it| it.unwrap().file_name().into_string().unwrap());
    let used = names.filter(|it| it.starts_with("10.1.0.")).count();
    assert_eq!(used, 2);
    assert_eq!(["used", "free", "resting"].map(count), [2, 250, 1]);
    assert_eq!(metrics.one("cni_range_addresses", &[ipv4, set]), 253);
    assert_eq!(metrics.all("cni_range_addresses", &[]).len(), 2);
    assert_eq!(metrics.one("cni_leases_unreadable", &[]), 1);
}

#[test]
fn attachments_and_host_ports_are_counted_by_network() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let tool = both(&host);
    let pods = ("network", "pods");
    let before = tool.metrics();
    assert_eq!(before.one("cni_attachments", &[pods]), 0);
    assert_eq!(before.all("cni_host_ports", &[pods]), [0, 0]);
    attach(&tool, &a, 8080);
    attach(&tool, &b, 8081);
    let after = tool.metrics();
    assert_eq!(after.one("cni_attachments", &[pods]), 2);
    let listed = rules(&host);
    let forwards = |it: &&str| it.contains("udp . 808") && it.contains("10.1.0.");
    assert_eq!(listed.lines().filter(forwards).count(), 2, "{listed}");
    let ports = |protocol| after.one("cni_host_ports", &[pods, ("protocol", protocol)]);
    assert_eq!(["tcp", "udp"].map(ports), [2, 2]);
}

#[test]
fn tables_are_complete_damaged_or_absent() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = both(&host);
    let masquerade = ("table", "cni-masquerade");
    let lacking = |it: &Metrics| it.one("cni_attachments_lacking_elements", &[masquerade]);
    let conditions = |it: &Metrics| {
        ["complete", "damaged", "absent"].map(|condition| {
            let labels = [("table", "cni-portmap"), ("condition", condition)];
            it.one("cni_table_condition", &labels)
        })
    };
    assert_eq!(conditions(&tool.metrics()), [0, 0, 1]);
    attach(&tool, &a, 8080);
    let complete = tool.metrics();
    assert_eq!((conditions(&complete), lacking(&complete)), ([1, 0, 0], 0));
    let elements = elements(&host, "cni-masquerade");
    assert!(elements > 0);
    let counted = complete.one("cni_table_elements", &[masquerade]);
    assert_eq!(counted, elements);
    host.run("nft", &["flush chain inet cni-portmap prerouting"]);
    assert_eq!(conditions(&tool.metrics()), [0, 1, 0]);
    host.run("nft", &["flush ruleset"]);
    let flushed = tool.metrics();
    assert_eq!((conditions(&flushed), lacking(&flushed)), ([0, 0, 1], 1));
    tool.run(&["reload"]).run();
    let restored = tool.metrics();
    assert_eq!((conditions(&restored), lacking(&restored)), ([1, 0, 0], 0));
}

/// Returns the number of elements in the sets and maps of a table, as nft lists them.
fn elements(host: &Host, table: &str) -> u64 {
    let listed = host.run("nft", &["-j", "list", "table", "inet", table]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let objects = listed["nftables"].as_array().unwrap().iter();
    let sets = objects.flat_map(|it| [&it["set"]["elem"], &it["map"]["elem"]]);
    let elements = sets.filter_map(Value::as_array).flatten().count();
    elements.try_into().unwrap()
}

#[test]
fn calls_are_those_of_the_log() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.tool();
    let log = host.dir().join("cni.log");
    let bridge = host.bridge_v4().with("logFile", log.to_str().unwrap());
    tool.configure("pods", &[bridge.config().clone()]);
    tool.on("add", "pods", &a).ok();
    // The interface exists already.
    host.bridge_v4()
        .with("logFile", log.to_str().unwrap())
        .on("ADD", &a)
        .error();
    fs::write(
        &log,
        fs::read_to_string(&log).unwrap() + "not a line of a plugin\n{\"plugin\":\"bridge\"",
    )
    .unwrap();
    let metrics = tool.metrics();
    let name = "cni_call_duration_seconds_count";
    let call = |code| [("plugin", "bridge"), ("verb", "ADD"), ("code", code)];
    assert_eq!(metrics.one(name, &call("0")), 1);
    let failed: u64 = metrics
        .all(name, &[("plugin", "bridge"), ("verb", "ADD")])
        .iter()
        .sum();
    assert_eq!(failed, 2, "{metrics:#?}");
    let labels = [&call("0")[..], &[("le", "+Inf")]].concat();
    assert_eq!(metrics.one("cni_call_duration_seconds_bucket", &labels), 1);
    assert_eq!(metrics.one("cni_log_lines_invalid_total", &[]), 1);
}

#[test]
fn pods_can_be_left_out() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = both(&host);
    attach(&tool, &a, 8080);
    let text = tool.run(&["metrics", "--no-pods"]).run().stdout;
    let metrics = Metrics::parse(&text);
    assert!(
        metrics.values_of("pod").is_empty() && !text.contains("cni_pod"),
        "{text}"
    );
    assert_eq!(metrics.one("cni_attachments", &[]), 1);
}

#[test]
fn a_pod_that_the_reference_attached_has_its_traffic() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.tool();
    tool.configure("pods", &[host.bridge_v4().config().clone()]);
    let text = fs::read_to_string(host.dir().join("net.d/pods.conflist")).unwrap();
    tool.write("pods.conflist", &text.replace("1.1.0", "1.0.0"));
    let add = tool.on("add", "pods", &a);
    let result = add.env("CNI_PATH", tests::REFERENCE).ok();
    let link = result["interfaces"][1]["name"].as_str().unwrap();
    for alias in ["", "of an operator"] {
        host.run("ip", &["link", "set", link, "alias", alias]);
        let metrics = tool.metrics();
        assert_eq!(metrics.one("cni_attachments", &[("network", "pods")]), 1);
        let numbers = metrics.all(NUMBERS[1], &[("interface", "eth0")]);
        assert_eq!(numbers.len(), 2, "{alias:?}");
    }
    let metrics = tool.metrics();
    assert_eq!(metrics.all("cni_attachments_lacking_elements", &[]), [0; 5]);
}
