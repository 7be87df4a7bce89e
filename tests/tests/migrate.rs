//! cnitool migrate: it lists the reference's firewall rules and removes unused ones.

use std::fs;

use serde_json::json;
use tests::traffic::{tcp, tcp_by_port};
use tests::{Chain, Host, Place as _, REFERENCE, Removal};

/// Returns bridge and portmap with masquerading, as both implementations support them.
fn chain(host: &Host, port: u16) -> Chain<'_> {
    let chain =
        Chain::new(host, &["bridge", "portmap"]).with("bridge", "macspoofchk", &json!(false));
    chain.with_ports([port, port])
}

/// Configures the network `pods` of [`chain`]: without it, no cached attachment is proven to be
/// gone.
fn configure(host: &Host) {
    host.tool().configure("pods", &[json!({"type": "bridge"})]);
}

/// Returns how many lines of `told` begin with this state and name this container.
fn count(told: &[String], state: &str, container: &str) -> usize {
    let owner = format!("id: \"{container}\"");
    let is_it = |line: &&String| line.starts_with(&format!("{state} ")) && line.contains(&owner);
    told.iter().filter(is_it).count()
}

/// Returns the rules of iptables in both families, without counters and comments.
fn saved(host: &Host) -> String {
    let programs = ["iptables-save", "ip6tables-save"];
    let texts = programs.map(|it| host.run(it, &["-t", "nat"]));
    let lines = texts.iter().flat_map(|it| it.lines());
    let lines: Vec<_> = lines.filter(|it| it.starts_with(['-', ':'])).collect();
    lines.join("\n")
}

#[test]
fn chains_of_deleted_pods_are_removed_and_those_of_live_pods_stay() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let (of_a, of_b) = (chain(&host, 8080), chain(&host, 8081));
    of_a.by_reference().add(&a).unwrap();
    let result = of_b.by_reference().add(&b).unwrap();
    host.tool().remember("pods", (&a, &result));
    host.tool().remember("pods", (&b, &result));
    let both = saved(&host);
    of_b.remove(Removal::Del, (&b, &result)).unwrap();
    fs::remove_file(host.tool().remembered("pods", &b)).unwrap();

    let told = host.tool().lines(&["migrate"]);
    // Each family has a chain for ports and one for masquerading.
    assert_eq!(
        (count(&told, "live", "a"), count(&told, "gone", "b")),
        (4, 4),
        "{told:#?}"
    );
    assert_eq!(told.len(), 8);
    assert_eq!(saved(&host), both, "nothing was removed");

    let told = host.tool().lines(&["migrate", "--remove"]);
    assert_eq!(
        (count(&told, "live", "a"), count(&told, "removed", "b")),
        (4, 4),
        "{told:#?}"
    );
    assert!(!saved(&host).contains("\"b\\\""), "{}", saved(&host));
    assert!(tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_some());
    assert_eq!(
        tcp(&a, &outside, "192.0.2.2"),
        Some("192.0.2.1".parse().unwrap())
    );
    // The port's next holder is reachable.
    of_b.add(&c).unwrap();
    assert!(tcp_by_port(&outside, "192.0.2.1:8081", (&c, 80)).is_some());
    assert_eq!(host.tool().lines(&["migrate", "--remove"]).len(), 4);
}

#[test]
fn after_the_last_pod_nothing_is_left_and_others_chains_are() {
    let host = Host::new();
    let outside = host.outside();
    for program in ["iptables", "ip6tables"] {
        host.run(program, &["-t", "nat", "-N", "CNI-MINE"]);
        host.run(
            program,
            &[
                "-t",
                "nat",
                "-A",
                "PREROUTING",
                "-p",
                "udp",
                "-j",
                "CNI-MINE",
            ],
        );
    }
    let before = saved(&host);
    let a = host.sandbox("a");
    let chain = chain(&host, 8080);
    let result = chain.by_reference().add(&a).unwrap();
    configure(&host);
    host.tool().remember("pods", (&a, &result));
    chain.remove(Removal::Del, (&a, &result)).unwrap();
    // The cached result exists, the sandbox does not.
    a.remove();
    let told = host.tool().lines(&["migrate", "--remove"]);
    let shared = told
        .iter()
        .filter(|it| it.ends_with("what all attachments shared"));
    assert_eq!(
        (count(&told, "removed", "a"), shared.count()),
        (4, 2),
        "{told:#?}"
    );
    // The reference leaves empty built-in chains, which iptables shows in any case.
    assert_eq!(user_rules(&saved(&host)), user_rules(&before));
    assert!(host.tool().lines(&["migrate"]).is_empty());
    let b = host.sandbox("b");
    chain.add(&b).unwrap();
    assert!(tcp_by_port(&outside, "192.0.2.1:8080", (&b, 80)).is_some());
}

/// A node may have used both variants of iptables in turn.
#[test]
fn both_implementations_of_iptables_are_read() {
    let host = Host::new();
    let chain = "CNI-DN-b0a8f1c35d4d8ff3a5a1c";
    for program in ["iptables-nft", "iptables-legacy"] {
        host.run(program, &["-t", "nat", "-N", chain]);
    }
    let places = ["iptables-nft", "iptables-legacy"];
    let lines = |state: &str| {
        places.map(|it| format!("{state:<8}{it}-save -t nat: {chain}, no rule jumps to it"))
    };
    assert_eq!(host.tool().lines(&["migrate"]), lines("gone"));
    assert_eq!(
        host.tool().lines(&["migrate", "--remove"]),
        lines("removed")
    );
    assert!(host.tool().lines(&["migrate"]).is_empty());
    // Reading must not create the table of an unused family.
    let made = fs::read_to_string("/proc/net/ip6_tables_names");
    assert_eq!(made.unwrap_or_default(), "");
}

fn user_rules(saved: &str) -> Vec<&str> {
    let lines = saved.lines().filter(|it| !it.contains(" ACCEPT "));
    lines.collect()
}

#[test]
fn a_lease_keeps_rules_of_an_uncached_pod() {
    let host = Host::new();
    let a = host.sandbox("a");
    let chain = chain(&host, 8080).with("bridge", "ipam.dataDir", &json!("/var/lib/cni/networks"));
    let result = chain.by_reference().add(&a).unwrap();
    let told = host.tool().lines(&["migrate", "--remove"]);
    assert_eq!((count(&told, "live", "a"), told.len()), (4, 4), "{told:#?}");
    chain.remove(Removal::Del, (&a, &result)).unwrap();
    let told = host.tool().lines(&["migrate", "--remove"]);
    assert_eq!(count(&told, "removed", "a"), 4, "{told:#?}");
}

/// Multus attaches pods like this: `static` leases nothing, and the cache is elsewhere.
#[test]
fn a_pod_with_only_a_link_keeps_its_ports() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let at = |port: u16, address: &str| {
        let addresses = json!([{"address": address}]);
        let ipam = json!({"type": "static", "addresses": addresses});
        chain(&host, port).with("bridge", "ipam", &ipam)
    };
    let (of_a, of_b) = (at(8080, "10.1.0.5/24"), at(8081, "10.1.0.6/24"));
    of_a.by_reference().add(&a).unwrap();
    of_b.by_reference().add(&b).unwrap();
    host.end(&b);
    let told = host.tool().lines(&["migrate", "--remove"]);
    let of = |state: &str, container: &str| count(&told, state, container);
    assert!(
        of("live", "a") == 2 && of("gone", "a") == 0 && of("removed", "b") == 2,
        "{told:#?}"
    );
    assert!(tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_some());
    // Another pod leases the address of the deleted one; the rules of the deleted pod are removed.
    host.end(&a);
    let next = chain(&host, 8082);
    let next = next.with("bridge", "ipam.dataDir", &json!("/var/lib/cni/networks"));
    let ranges = json!([[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.5"}]]);
    next.with("bridge", "ipam.ranges", &ranges)
        .by_reference()
        .add(&c)
        .unwrap();
    assert_eq!(c.addresses("eth0"), ["10.1.0.5/24"]);
    let told = host.tool().lines(&["migrate", "--remove"]);
    assert_eq!(
        (count(&told, "removed", "a"), count(&told, "live", "c")),
        (2, 2),
        "{told:#?}"
    );
}

/// An operator's pod sees the cache but not the namespaces in it.
#[test]
fn a_link_keeps_rules_of_a_pod_whose_cached_sandbox_is_missing() {
    let host = Host::new();
    let outside = host.outside();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let (of_a, of_b) = (chain(&host, 8080), chain(&host, 8081));
    let result = of_a.by_reference().add(&a).unwrap();
    host.tool().remember("pods", (&a, &result));
    // The bridge is ours already, the ports are the reference's.
    let result = of_b.add_first(1, &b).unwrap();
    let of_b = of_b.by_reference();
    of_b.call(1, "ADD", (&b, &result)).ok();
    host.tool().remember("pods", (&b, &result));
    let script = "mount -t tmpfs none /run/netns && exec \"$@\"";
    let hidden = ["unshare", "--mount", "sh", "-c", script, "sh"].map(str::to_owned);
    let run = host.tool().run(&["migrate", "--remove"]).under(&hidden);
    let told = run.run();
    assert!(
        told.status.success() && !told.stdout.contains("removed "),
        "{told:#?}"
    );
    assert!(tcp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_some());
    assert!(tcp_by_port(&outside, "192.0.2.1:8081", (&b, 80)).is_some());
}

#[test]
fn a_lease_in_a_configured_directory_keeps_the_rules() {
    let host = Host::new();
    let a = host.sandbox("a");
    let elsewhere = host.dir().join("elsewhere");
    let chain = chain(&host, 8080).with("bridge", "ipam.dataDir", &json!(elsewhere));
    chain.by_reference().add(&a).unwrap();
    let ipam = json!({"type": "host-local", "dataDir": elsewhere});
    let list = json!({"name": "pods", "plugins": [{"type": "bridge", "ipam": ipam}]});
    host.tool().write("pods.conflist", &list.to_string());
    let told = host.tool().lines(&["migrate", "--remove"]);
    assert_eq!((count(&told, "live", "a"), told.len()), (4, 4), "{told:#?}");
}

#[test]
fn nothing_is_removed_if_live_pods_cannot_be_found() {
    let host = Host::new();
    let a = host.sandbox("a");
    let chain = chain(&host, 8080);
    let result = chain.by_reference().add(&a).unwrap();
    chain.remove(Removal::Del, (&a, &result)).unwrap();
    let before = saved(&host);
    let remembered = host.tool().remembered("pods", &a);
    fs::create_dir_all(host.tool().results()).unwrap();
    fs::write(&remembered, "{").unwrap();
    let outcome = host.tool().run(&["migrate", "--remove"]).run();
    assert!(
        !outcome.status.success() && outcome.stderr.contains(remembered.to_str().unwrap()),
        "{outcome:#?}"
    );
    fs::remove_file(&remembered).unwrap();
    let torn = "/var/lib/cni/networks/pods/10.9.9.9";
    fs::create_dir_all("/var/lib/cni/networks/pods").unwrap();
    fs::write(torn, "../a").unwrap();
    let outcome = host.tool().run(&["migrate", "--remove"]).run();
    assert!(
        !outcome.status.success() && outcome.stderr.contains(torn),
        "{outcome:#?}"
    );
    assert_eq!(saved(&host), before);
}

/// Tables of the reference 1.9.1, which it creates if configured so or without iptables.
const TABLES: &str = r#"
    table ip cni_hostport {
        chain hostports {
            tcp dport 8080 dnat to 10.1.0.2:80 comment "a"
            tcp dport 8081 dnat to 10.1.0.3:80 comment "b"
        }
        chain masquerading {
            type nat hook postrouting priority srcnat;
            ip saddr 10.1.0.3 ip daddr 10.1.0.3 masquerade comment "b"
        }
        chain prerouting {
            type nat hook prerouting priority dstnat;
            jump hostports
        }
    }
    table ip6 cni_hostport {
        chain hostports {
            tcp dport 8081 dnat to [fd00:1::3]:80 comment "b"
        }
    }
    table inet cni_plugins_masquerade {
        chain masq_checks {
            ip saddr 10.1.0.2 ip daddr != 10.1.0.0/24 masquerade comment "OF_A, net: pods, if: eth0, id: a"
            ip saddr 10.1.0.3 ip daddr != 10.1.0.0/24 masquerade comment "OF_B, net: pods, if: eth0, id: b"
        }
        chain postrouting {
            type nat hook postrouting priority srcnat;
            goto masq_checks
        }
    }
    table inet mine {
        chain hostports {
            tcp dport 8081 accept comment "b"
        }
    }
"#;

/// Runs `printf TEXT | sha512sum | cut -c 1-16`.
fn digits(host: &Host, text: &str) -> String {
    let script = format!("printf %s '{text}' | sha512sum | cut -c 1-16");
    host.run("sh", &["-c", &script]).trim().to_owned()
}

#[test]
fn rules_of_nf_tables_are_removed_by_their_comments() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let of = |container: &str| {
        let parts = ["pods".to_owned(), format!("eth0:{container}")];
        parts.map(|it| digits(&host, &it)).join("-")
    };
    let tables = TABLES.replace("OF_A", &of("a")).replace("OF_B", &of("b"));
    let file = host.dir().join("tables.nft");
    fs::write(&file, tables).unwrap();
    host.run("nft", &["--file", file.to_str().unwrap()]);
    let result = json!({"cniVersion": "1.0.0"});
    configure(&host);
    host.ip("link add cni0 type bridge");
    host.tool().remember("pods", (&a, &result));
    host.tool().remember("pods", (&b, &result));
    let live = host.tool().lines(&["migrate", "--remove"]);
    assert_eq!(live.len(), 6);
    assert!(live.iter().all(|it| it.starts_with("live ")), "{live:#?}");

    b.remove();
    let told = host.tool().lines(&["migrate", "--remove"]);
    let removed = told.iter().filter(|it| it.starts_with("removed ")).count();
    assert_eq!((removed, told.len()), (5, 7), "{told:#?}");
    let rules = host.run("nft", &["list", "ruleset"]);
    assert!(
        rules.contains("10.1.0.2:80") && rules.contains("id: a"),
        "{rules}"
    );
    assert!(
        !rules.contains("10.1.0.3") && !rules.contains("fd00:1::3"),
        "{rules}"
    );
    assert!(!rules.contains("table ip6 cni_hostport"), "{rules}");
    assert!(
        rules.contains("table inet mine") && rules.contains("8081 accept"),
        "{rules}"
    );
}

#[test]
fn a_host_without_the_reference_gets_a_message() {
    let host = Host::new();
    chain(&host, 8080).add(&host.sandbox("a")).unwrap();
    let before = host.snapshot();
    let outcome = host.tool().run(&["migrate", "--remove"]).run();
    assert!(
        outcome
            .stderr
            .contains("no chains or rules of the Go plugins"),
        "{outcome:#?}"
    );
    assert!(outcome.status.success() && outcome.stdout.is_empty());
    host.snapshot().assert_same_as(&before);
    // Without iptables and nft there can be no such rules.
    let bare = host.tool().run(&["migrate"]).env("PATH", REFERENCE);
    assert!(bare.run().status.success());
}
