//! cnitool gc: it removes leftovers of deleted pods and nothing of existing ones.

use std::fs;

use serde_json::json;
use tests::leaks::{age, lease_of};
use tests::traffic::tcp_by_port;
use tests::{Host, Invocation, Place as _, Sandbox, Tool, at_once, eventually};

/// Configures the network `pods` with everything that this suite can give a pod.
fn pods(host: &Host) -> Tool<'_> {
    let tool = host.tool();
    let bridge = host.bridge().with("isDefaultGateway", true);
    let bridge = bridge.with("ipMasq", true).with("macspoofchk", true);
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let rate = 10_000_000;
    let bandwidth = json!({"type": "bandwidth", "ingressRate": rate, "egressRate": rate});
    tool.configure("pods", &[bridge.config().clone(), portmap, bandwidth]);
    tool
}

/// Runs ADD with a cache where `gc` does not look.
fn add_by_multus(tool: &Tool<'_>, pod: &Sandbox, port: u16) {
    let mappings = json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    let arguments = json!({ "portMappings": mappings }).to_string();
    let add = tool.on("add", "pods", pod).env("CAP_ARGS", arguments);
    add.env("CNI_CACHE_DIR", "/var/lib/other").ok();
}

/// Creates an old lease of a container that never existed here, and makes all others as old.
fn stale_lease(host: &Host, address: &str) {
    lease_of(host, "gone", address);
    age(&host.lease_dir());
}

/// Runs a command without `/run/netns` and the runtime's cache, like an operator's pod.
fn without_the_hosts_files(run: Invocation) -> Invocation {
    let script = "mount -t tmpfs none /run/netns && mount -t tmpfs none /var/lib && exec \"$@\"";
    run.under(&["unshare", "--mount", "sh", "-c", script, "sh"].map(str::to_owned))
}

/// Checks that doctor, which sees no more than that either, gives no advice about leases.
#[track_caller]
fn advises_nothing(tool: &Tool<'_>) {
    let doctor = without_the_hosts_files(tool.run(&["doctor", "--json"]));
    let told = doctor.run().stdout;
    let findings: Vec<serde_json::Value> = serde_json::from_str(&told).unwrap();
    let of_leases = findings.iter().filter(|it| it["subject"] == "lease");
    let levels: Vec<_> = of_leases.map(|it| &it["level"]).collect();
    assert_eq!(levels, ["ok"], "{told}");
}

/// Checks that a pod has its leases, pair, limits and port.
#[track_caller]
fn has_everything(host: &Host, (pod, port): (&Sandbox, u16)) {
    let leases = host.leases("pods");
    for address in pod.addresses("eth0") {
        let address = address.split('/').next().unwrap();
        assert!(leases.contains_key(address), "{address}: {leases:#?}");
    }
    assert!(pod.pings("10.1.0.1"));
    let peer = pod.link("eth0")["link_index"].as_u64().unwrap();
    let links = host.ip_json("link show");
    let link = links.iter().find(|it| it["ifindex"] == peer).unwrap();
    let mut limits = host.qdiscs(link["ifname"].as_str().unwrap());
    // Some kernels have no fq_codel.
    limits.retain(|it| it["kind"] != "fq_codel");
    assert_eq!(limits.len(), 1, "{limits:#?}");
    assert_eq!(limits[0]["kind"], "tbf");
    assert!(pod.limit("eth0").is_some());
    let backstops = host.run("nft", &["list", "table", "bridge", "cni-bandwidth"]);
    let owner = link["ifalias"].as_str().unwrap();
    assert!(backstops.contains(&format!("\"{owner}\"")), "{backstops}");
    let record = owner.replace('/', ":");
    assert!(fs::exists(format!("/run/cni/bandwidth/{record}")).unwrap());
    let target = format!("192.0.2.1:{port}");
    assert!(tcp_by_port(host, &target, (pod, 80)).is_some());
}

#[test]
fn pods_that_start_beside_gc_keep_all_that_they_have() {
    let host = Host::new();
    let _outside = host.outside();
    let tool = pods(&host);
    stale_lease(&host, "10.1.0.200");
    let pods: Vec<_> = (0..30)
        .map(|it| host.sandbox(&format!("pod{it}")))
        .collect();
    let ports: Vec<_> = pods.iter().zip(8000..).collect();
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| {
            at_once(&ports, |(pod, port)| {
                if port % 2 == 0 {
                    add_by_multus(&tool, pod, *port);
                } else {
                    tool.add("pods", pod, &[&format!("{port}:80/tcp")]);
                }
            });
        });
        // Some runs start before the bridge exists, and refuse.
        let mut runs = 0;
        while runs < 10 || !adding.is_finished() {
            tool.run(&["gc", "pods"]).run();
            runs += 1;
        }
        adding.join().unwrap();
    });
    for (pod, port) in ports {
        has_everything(&host, (pod, port));
    }
    tool.run(&["gc", "pods"]).ok();
    let leases = host.leases("pods");
    assert!(
        leases.len() == 60 && !leases.contains_key("10.1.0.200"),
        "{leases:#?}"
    );
}

#[test]
fn pods_whose_results_are_cached_elsewhere_stay() {
    let host = Host::new();
    let _outside = host.outside();
    let tool = pods(&host);
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    add_by_multus(&tool, &a, 8080);
    tool.add("pods", &b, &["8081:80/tcp"]);
    age(&host.lease_dir());
    advises_nothing(&tool);
    stale_lease(&host, "10.1.0.200");
    let gc = tool.run(&["gc", "pods"]);
    for run in [gc.clone(), without_the_hosts_files(gc)] {
        run.ok();
        has_everything(&host, (&a, 8080));
        has_everything(&host, (&b, 8081));
        assert_eq!(host.leases("pods").len(), 4);
        stale_lease(&host, "10.1.0.201");
    }
}

/// The pod's runtime has forgotten it, and the version has no GC.
#[test]
fn all_that_is_left_of_a_forgotten_pod_goes() {
    let host = Host::new();
    let _outside = host.outside();
    let tool = pods(&host);
    let list = host.dir().join("net.d/pods.conflist");
    let text = fs::read_to_string(&list).unwrap();
    tool.install("pods", &text.replace("1.1.0", "0.4.0"));
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    add_by_multus(&tool, &a, 8080);
    let before = host.snapshot();
    add_by_multus(&tool, &b, 8081);
    host.end(&b);
    let young = tool.run(&["gc", "pods"]).run();
    assert!(young.status.success() && young.stderr.contains("may still be running: kept"));
    assert_eq!(host.leases("pods").len(), 4);
    age(&host.lease_dir());
    tool.run(&["gc", "pods"]).ok();
    assert!(eventually(|| host
        .snapshot()
        .differences(&before)
        .is_empty()));
    has_everything(&host, (&a, 8080));
    // The port is free for the next pod.
    let c = host.sandbox("c");
    add_by_multus(&tool, &c, 8081);
    has_everything(&host, (&c, 8081));
}

/// The reference does not tag its links; the address behind a link proves that the pod exists.
#[test]
fn pods_of_the_reference_stay_until_they_are_gone() {
    let host = Host::new();
    let tool = host.tool();
    let bridge = host.bridge_v4();
    tool.configure("pods", &[bridge.config().clone()]);
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    for pod in [&a, &b] {
        bridge.by_reference().add(pod);
    }
    age(&host.lease_dir());
    advises_nothing(&tool);
    let gc = tool.run(&["gc", "pods"]);
    without_the_hosts_files(gc.clone()).ok();
    assert_eq!(host.leases("pods").len(), 2);
    host.end(&b);
    // The same state exists during an ADD of the reference before it configures the link, or if
    // root in the pod deletes its address.
    a.ip("address flush dev eth0 scope global");
    let reason = "no known address of the sandbox behind";
    gc.expect_failure(&["nothing was removed", reason]);
    a.ip("address add 10.1.0.99/24 dev eth0");
    gc.expect_failure(&["nothing was removed", reason]);
    assert_eq!(host.leases("pods").len(), 2);
    a.ip("address add 10.1.0.2/24 dev eth0");
    gc.ok();
    let leases = host.leases("pods");
    assert_eq!(
        leases.keys().collect::<Vec<_>>(),
        ["10.1.0.2"],
        "{leases:#?}"
    );
}

#[test]
fn nothing_is_removed_where_links_of_pods_cannot_be_seen() {
    let host = Host::new();
    let tool = pods(&host);
    let a = host.sandbox("a");
    add_by_multus(&tool, &a, 8080);
    stale_lease(&host, "10.1.0.200");
    let before = host.leases("pods");
    let gc = tool.run(&["gc", "pods"]);
    let elsewhere = gc.under(&["unshare", "--net"].map(str::to_owned));
    elsewhere.expect_failure(&["neither bridge cni0", "gc pods --all"]);
    // Without capabilities in the pods' namespaces, a process does not see behind the reference's
    // links.
    let b = host.sandbox("b");
    host.bridge().by_reference().add(&b);
    age(&host.lease_dir());
    let powerless = tool
        .run(&["gc", "pods"])
        .with_capabilities(&["dac_override"]);
    powerless.expect_failure(&["nothing was removed"]);
    host.bridge().by_reference().del(&b);
    assert_eq!(host.leases("pods"), before);
    tool.run(&["gc", "pods"]).ok();
    assert_eq!(host.leases("pods").len(), 2);
}

/// Elements and an address prove no namespace: a saved ruleset may be loaded in any.
#[test]
fn nothing_is_removed_where_only_a_saved_ruleset_names_the_network() {
    let host = Host::new();
    let tool = pods(&host);
    let a = host.sandbox("a");
    add_by_multus(&tool, &a, 8080);
    age(&host.lease_dir());
    let file = host.dir().join("saved.nft");
    fs::write(&file, host.run("nft", &["list", "ruleset"])).unwrap();
    let script = format!("nft --file {} && exec \"$@\"", file.display());
    let elsewhere = ["unshare", "--net", "sh", "-c", &script, "sh"].map(str::to_owned);
    let gc = tool.run(&["gc", "pods"]).under(&elsewhere);
    gc.expect_failure(&["neither bridge cni0", "may be live: kept"]);
    assert_eq!(host.leases("pods").len(), 2);
    assert!(a.pings("10.1.0.1"));
}

#[test]
fn without_links_on_the_host_gc_uses_the_given_list() {
    let host = Host::new();
    let tool = host.tool();
    let ipam = host.bridge_v4().config()["ipam"].clone();
    tool.configure("pods", &[json!({"type": "weave-net", "ipam": ipam})]);
    host.script("weave-net", "PATH=$CNI_PATH:$PATH exec host-local");
    stale_lease(&host, "10.1.0.200");
    fs::write(host.lease_dir().join("pods/10.1.0.201"), "lives\r\neth0").unwrap();
    age(&host.lease_dir());
    tool.run(&["gc", "pods"]).expect_failure(&[
        "plugin weave-net makes no link",
        "container lives",
        "may be live: kept",
    ]);
    assert_eq!(host.leases("pods").len(), 2);
    let cut_short = tool.run(&["gc", "pods", "--valid", "live/eth0"]);
    cut_short.expect_failure(&["the ID live in --valid is cut short"]);
    assert_eq!(host.leases("pods").len(), 2);
    tool.run(&["gc", "pods", "--valid", "lives/eth0"]).ok();
    assert_eq!(
        host.leases("pods").keys().collect::<Vec<_>>(),
        ["10.1.0.201"]
    );
    tool.run(&["gc", "pods", "--all"]).ok();
    assert!(host.leases("pods").is_empty());
}

/// The list may be older than a pod, or wrong.
#[test]
fn an_unlisted_pod_stays_if_it_is_proven_live() {
    let host = Host::new();
    let _outside = host.outside();
    let tool = pods(&host);
    let a = host.sandbox("a");
    add_by_multus(&tool, &a, 8080);
    stale_lease(&host, "10.1.0.200");
    let outcome = tool.run(&["gc", "pods", "--valid", "gone/eth0"]).run();
    assert!(
        outcome.stderr.contains("is not listed, but is live: kept"),
        "{outcome:#?}"
    );
    has_everything(&host, (&a, 8080));
    assert_eq!(host.leases("pods").len(), 3);
    tool.run(&["gc", "pods", "--all"]).ok();
    assert!(host.leases("pods").is_empty() && a.links() == ["lo"]);
}

/// Its addresses cannot be listed; those of all other pods can.
#[test]
fn a_pod_with_many_addresses_that_change_hinders_no_removal() {
    let host = Host::new();
    let _outside = host.outside();
    let tool = pods(&host);
    let a = host.sandbox("a");
    add_by_multus(&tool, &a, 8080);
    stale_lease(&host, "10.1.0.200");
    let batch = |name: &str, lines: String| {
        let path = host.dir().join(name);
        fs::write(&path, lines).unwrap();
        path.display().to_string()
    };
    let links = "link add v0 type veth peer name v1\n".to_owned();
    let number = |it: usize| format!("address add 10.200.{}.{}/32 dev v0\n", it / 256, it % 256);
    let many = batch("many", links + &(0..5_000).map(number).collect::<String>());
    a.run("ip", &["-batch", &many]);
    let change = "address add 10.9.9.9/32 dev v1\naddress delete 10.9.9.9/32 dev v1\n";
    let changes = batch("changes", change.repeat(100));
    std::thread::scope(|scope| {
        let collecting = scope.spawn(|| tool.run(&["gc", "pods"]).run());
        while !collecting.is_finished() {
            a.run("ip", &["-batch", &changes]);
        }
        let outcome = collecting.join().unwrap();
        assert!(outcome.status.success(), "{outcome:#?}");
    });
    assert!(!host.leases("pods").contains_key("10.1.0.200"));
    has_everything(&host, (&a, 8080));
}

#[test]
fn del_and_gc_use_the_configuration_of_the_add() {
    let host = Host::new();
    let tool = host.tool();
    let configure = |directory: &str| {
        let directory = host.dir().join(directory);
        let bridge = host.bridge_v4().with("ipam.dataDir", json!(directory));
        tool.configure("pods", &[bridge.config().clone()]);
    };
    let leases = || {
        let old = host.dir().join("old/pods");
        let files = fs::read_dir(old).unwrap().map(|it| it.unwrap().file_name());
        files
            .filter(|it| it.to_str().unwrap().starts_with("10."))
            .count()
    };
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    configure("old");
    for pod in [&a, &b, &c] {
        tool.add("pods", pod, &[]);
    }
    assert_eq!(leases(), 3);
    configure("new");
    tool.on("del", "pods", &a).ok();
    assert_eq!((leases(), a.links()), (2, vec!["lo".to_owned()]));
    host.end(&b);
    tool.run(&["gc", "pods"]).ok();
    assert_eq!(leases(), 1);
    // The file may not exist at all.
    fs::remove_file(host.dir().join("net.d/pods.conflist")).unwrap();
    tool.on("del", "pods", &c).ok();
    assert_eq!((leases(), c.links()), (0, vec!["lo".to_owned()]));
}

/// The specification's GC requires version 1.1.0; cnitool's gc uses DEL.
#[test]
fn leases_of_older_networks_are_released_where_pods_can_be_seen() {
    let host = Host::new();
    let tool = host.tool();
    let bridge = host.bridge_v4();
    let list = json!({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge.config()]});
    tool.write("pods.conflist", &list.to_string());
    let pods = host.lease_dir().join("pods");
    fs::create_dir_all(&pods).unwrap();
    let lease = pods.join("10.1.0.9");
    fs::write(&lease, "gone\r\neth0").unwrap();
    let findings = tool.doctor();
    assert!(
        !findings.holds("warning", "lease", &[]),
        "its ADD may still be running"
    );
    age(&host.lease_dir());
    let findings = tool.doctor();
    let words = ["10.1.0.9 (gone)", "may be live", "neither bridge cni0"];
    findings.expect("warning", "lease", &words);
    assert_eq!(
        findings.fixes("lease"),
        [""; 0],
        "nothing shows that it is gone"
    );
    host.ip("link add cni0 type bridge");
    host.ip("link set cni0 up");
    let findings = tool.doctor();
    findings.expect("warning", "lease", &["10.1.0.9 (gone)"]);
    assert_eq!(findings.fixes("lease"), ["cnitool gc pods"]);
    tool.run(&["gc", "pods"]).ok();
    assert!(!lease.exists());
}
