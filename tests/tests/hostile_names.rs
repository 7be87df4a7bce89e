//! Every plugin with names that would leave their directory or share a file, and with paths that
//! are not network namespaces.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{Host, Network, Place as _, Sandbox};

/// Returns a network of each plugin; the chained ones have the required result.
fn networks(host: &Host) -> [Network<'_>; 7] {
    let result = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "veth1"}, {"name": "eth0", "sandbox": "/run/netns/a"}],
        "ips": [{"address": "10.1.0.2/24", "interface": 1}],
    });
    let ports = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80}]});
    let portmap = host.bandwidth().with("type", "portmap");
    let bandwidth = host.bandwidth().with("ingressRate", 1_000_000);
    let networks = [
        host.bridge_v4().with("ipMasq", true),
        host.host_local(),
        host.fixed(),
        host.loopback(),
        portmap
            .with("runtimeConfig", ports)
            .with("prevResult", result.clone()),
        host.tuning().with("prevResult", result.clone()),
        bandwidth
            .with("ingressBurst", 100_000)
            .with("prevResult", result),
    ];
    networks.map(|it| it.with("cniVersion", "1.1.0"))
}

/// Returns all files in and beside the directories to which plugins write.
fn files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![PathBuf::from("/run"), PathBuf::from("/var/lib")];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                left.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Checks that `work` fails and creates no file or link.
fn leaving_nothing(work: impl Fn(&Host, &Network<'_>)) {
    let host = Host::new();
    let networks = networks(&host);
    let before = (host.snapshot(), files());
    for network in &networks {
        work(&host, network);
    }
    host.snapshot().assert_same_as(&before.0);
    assert_eq!(files(), before.1);
}

#[test]
fn unsafe_names_of_containers_and_interfaces_are_refused() {
    let names = [
        "..",
        ".",
        "../x",
        "/x",
        "x/../y",
        "x\ny",
        "x\n",
        "\n",
        " ",
        "\u{85}",
        "\u{1b}[2J",
    ];
    leaving_nothing(|_, network| {
        for verb in ["ADD", "DEL", "CHECK"] {
            for name in names {
                let id = network.call_for(verb, "c1").container(name).error();
                id.expect(4, &["CNI_CONTAINERID"]);
                let interface = network.call_for(verb, "c1").ifname(name).error();
                interface.expect(4, &["CNI_IFNAME"]);
            }
            for bytes in [&b"a\xff"[..], b"\xc0\xaf", b"\x80"] {
                let name = std::ffi::OsStr::from_bytes(bytes);
                let id = network
                    .call_for(verb, "c1")
                    .env("CNI_CONTAINERID", name)
                    .error();
                id.expect(4, &["CNI_CONTAINERID"]);
            }
        }
    });
}

#[test]
fn unsafe_names_of_networks_are_refused() {
    let names = [
        "..",
        "../x",
        "x/../../y",
        "/x",
        "x\0y",
        "x\n",
        "",
        "-x",
        ".host-local",
    ];
    leaving_nothing(|host, network| {
        for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            for name in names {
                let network = network.clone().with("name", name);
                let refusal = network
                    .call_for(verb, "c1")
                    .env("CNI_PATH", host.search_path());
                refusal.error().expect(7, &["name"]);
            }
        }
    });
}

/// ADD rejects such names, so the entries protect nothing and the other attachments are collected.
#[test]
fn gc_skips_unsafe_names() {
    let host = Host::new();
    let network = host.bridge();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    network.add(&a);
    let before = host.snapshot();
    for (id, ifname) in [
        ("../x", "eth0"),
        ("x", "../y"),
        ("x\0", "eth0"),
        ("x", "sixteen-letters."),
    ] {
        network.add(&b);
        let list = json!([
            {"containerID": id, "ifname": ifname}, {"containerID": "a", "ifname": "eth0"},
        ]);
        let gc = network.clone().with("cniVersion", "1.1.0");
        let gc = gc.with_key("cni.dev/valid-attachments", list);
        let outcome = gc.call("GC").run();
        assert!(
            outcome.stderr.contains("cni.dev/valid-attachments[0]"),
            "{outcome:#?}"
        );
        outcome.ok();
        host.snapshot().assert_same_as(&before);
    }
    for network in networks(&host) {
        let list = json!([{"containerID": "../x", "ifname": "eth0"}]);
        let gc = network.with("cniVersion", "1.1.0");
        let gc = gc.with_key("cni.dev/valid-attachments", list);
        gc.call("GC").ok();
    }
}

/// Such an entry may belong to an existing pod, so GC removes nothing.
#[test]
fn gc_refuses_entries_without_container_or_interface() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.bridge().add(&a);
    let before = host.snapshot();
    for network in networks(&host) {
        for entry in [
            json!({"containerID": "", "ifname": "eth0"}),
            json!({"containerID": "a", "ifname": ""}),
            json!({"containerID": "a"}),
            json!({"ifname": "eth0"}),
            json!({"containerID": "a", "ifname": null}),
            json!({"containerID": 7, "ifname": "eth0"}),
            json!({"containerID": "a", "ifname": "\u{1}"}),
            json!("a/eth0"),
            json!(null),
        ] {
            let network = network.clone().with("cniVersion", "1.1.0");
            let gc = network.with_key("cni.dev/valid-attachments", json!([entry]));
            gc.call("GC")
                .error()
                .expect(7, &["cni.dev/valid-attachments[0]"]);
        }
    }
    host.snapshot().assert_same_as(&before);
}

/// The path of a record does not tell container `a` with `b_c` from container `a_b` with `c`.
#[test]
fn del_leaves_the_record_of_another_attachment_alone() {
    let host = Host::new();
    let network = host.bandwidth().with("type", "tuning").with("mtu", 1400);
    let others = network.clone().with("name", "others");
    let [a, a_b] = ["a", "a_b"].map(|name| host.sandbox(name));
    let attach = |pod: &Sandbox, interface: &str| {
        let result = host.bridge().on("ADD", pod).ifname(interface).ok();
        let network = network.clone().with("prevResult", result);
        network.on("ADD", pod).ifname(interface).ok();
    };
    let record = Path::new("/run/cni/tuning/a_b_c.json");
    attach(&a, "b_c");
    let before = fs::read(record).unwrap();
    a_b.ip("link add c mtu 1300 type veth peer name other");
    for (network, pod, interface) in [(&network, &a_b, "c"), (&others, &a, "b_c")] {
        let outcome = network.on("DEL", pod).ifname(interface).run();
        assert_eq!(outcome.ok(), Value::Null);
        assert!(outcome.stderr.contains("cni:pods/a/b_c"), "{outcome:?}");
        assert_eq!(fs::read(record).unwrap(), before);
    }
    let mtu = |pod: &Sandbox, interface: &str| pod.link(interface)["mtu"].clone();
    assert_eq!([mtu(&a, "b_c"), mtu(&a_b, "c")], [1400, 1300]);
    a_b.ip("link delete c");
    attach(&a_b, "c");
    network.on("DEL", &a).ifname("b_c").ok();
    assert_eq!([mtu(&a, "b_c"), mtu(&a_b, "c")], [1400, 1400]);
    network.on("DEL", &a_b).ifname("c").ok();
    assert_eq!(mtu(&a_b, "c"), 1500);
    assert!(!record.exists());
}

#[test]
fn unsafe_arguments_are_refused() {
    let host = Host::new();
    let a = host.sandbox("a");
    let before = host.snapshot();
    for args in [
        "IP=../../x",
        "IP=10.1.0.7/../8",
        "IP=10.1.0.7\n10.1.0.8",
        "IP=/etc/passwd",
        "IP=\u{0661}",
    ] {
        let refusal = host.host_local().on("ADD", &a).args(args).error();
        assert!([4, 7].contains(&refusal.code), "{args:?}: {refusal:?}");
    }
    for args in [
        "MAC=../x",
        "MAC=02:00:00:00:00:0",
        "MAC=\n",
        "MAC=ff:ff:ff:ff:ff:ff",
    ] {
        let refusal = host.bridge_v4().on("ADD", &a).args(args).error();
        assert!([4, 7].contains(&refusal.code), "{args:?}: {refusal:?}");
    }
    host.snapshot().assert_same_as(&before);
    assert_eq!(a.links(), ["lo"]);
}

#[test]
fn an_unsafe_name_of_a_delegate_or_bridge_is_refused() {
    let host = Host::new();
    let a = host.sandbox("a");
    for name in ["../host-local", "/bin/sh", ".", "..", "x\0y", "a/b"] {
        let network = host.bridge().with("ipam", json!({"type": name}));
        network.on("ADD", &a).error().expect(7, &["ipam.type"]);
        network.on("DEL", &a).error().expect(7, &["ipam.type"]);
    }
    for name in ["../x", "a/b", "..", "a b", "a\0", "longer-than-any-link"] {
        host.bridge()
            .with("bridge", name)
            .on("ADD", &a)
            .error()
            .expect(7, &["bridge"]);
    }
    assert_eq!(host.links(), ["lo"]);
}

/// Creates paths for `CNI_NETNS` that are not network namespaces.
fn no_namespaces(host: &Host) -> Vec<PathBuf> {
    let at = |name: &str| host.dir().join(name);
    File::create(at("file")).unwrap();
    host.run("mkfifo", &[at("pipe").to_str().unwrap()]);
    symlink(at("loop"), at("loop")).unwrap();
    symlink("/proc/self/ns/mnt", at("link")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(at("socket")).unwrap());
    let mut paths: Vec<_> = ["file", "pipe", "loop", "link", "socket"].map(at).into();
    let others = [
        "/proc/self/ns/mnt",
        "/proc/self/ns/uts",
        "/proc/self/ns/pid_for_children",
        "/proc/self/ns",
    ];
    let strange = [
        "/dev/null",
        "/dev/zero",
        "/dev/tty",
        "/proc/self/mem",
        "/dev/ptmx",
        "/",
    ];
    paths.extend(others.into_iter().chain(strange).map(PathBuf::from));
    paths.push("x".repeat(5_000).into());
    paths
}

#[test]
fn what_is_no_network_namespace_is_refused_without_delay() {
    let host = Host::new();
    let paths = no_namespaces(&host);
    let networks = networks(&host);
    // These never open the namespace.
    let blind = ["host-local", "static", "portmap"];
    let opening: Vec<_> = networks
        .iter()
        .filter(|it| !blind.contains(&it.config()["type"].as_str().unwrap()))
        .collect();
    let before = host.snapshot();
    for path in &paths {
        for network in &opening {
            let start = Instant::now();
            let name = &network.config()["type"];
            let refusal = network.call_for("ADD", "c1").netns(path).error();
            assert_eq!(refusal.code, 4, "{name} {}: {refusal:?}", path.display());
            assert!(refusal.mentions("CNI_NETNS"), "{refusal:?}");
            network.call_for("CHECK", "c1").netns(path).error();
            network.call_for("DEL", "c1").netns(path).ok();
            assert!(start.elapsed() < PATIENCE, "{name} {}", path.display());
        }
    }
    host.snapshot().assert_same_as(&before);
    assert_eq!(host.links(), ["lo"]);
}

/// Time limit; a run takes some milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);
