//! bandwidth on a host with leftovers of an interrupted ADD or of other programs.

use nix::errno::Errno;
use serde_json::json;
use tests::faults::{Harm, Trace};
use tests::limited::record;
use tests::{Host, Network, Place as _, Sandbox};

/// Returns the host end of a sandbox on the bridge, and limits behind it in the chain.
fn chain<'h>(host: &'h Host, sandbox: &Sandbox) -> (String, Network<'h>) {
    let result = host.bridge_v4().add(sandbox);
    let link = result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    let limits = json!({
        "ingressRate": 10_000_000, "ingressBurst": 4_294_967_295_u64,
        "egressRate": 20_000_000, "egressBurst": 34_359_738_359_u64,
    });
    let network = host.bandwidth().with("prevResult", result);
    (link, network.with("runtimeConfig.bandwidth", limits))
}

/// Creates the tables of backstops, which stay after the host's first attachment.
fn keep_the_tables(host: &Host) {
    let warm = host.sandbox("warm");
    let (_, network) = chain(host, &warm);
    network.add(&warm);
    network.del(&warm);
    host.bridge_v4().del(&warm);
}

/// Returns the element of a sandbox's backstop, as nft shows it; empty if there is none.
fn backstop(host: &Host, sandbox: &Sandbox) -> String {
    let owner = format!("cni:pods/{}/", sandbox.name());
    let rules = host.run("nft", &["--stateless", "list", "ruleset"]);
    let mut lines = rules.lines().filter(|line| line.contains(&owner));
    lines.next().unwrap_or_default().to_owned()
}

/// Returns the effective ingress filters of a link.
fn filters(host: &Host, link: &str) -> Vec<String> {
    let shown = host.tc(&format!("filter show dev {link} ingress"));
    let filters = shown.lines().filter(|line| line.contains("flowid"));
    filters.map(str::to_owned).collect()
}

/// Checks that the host reaches the sandbox.
#[track_caller]
fn expect_reached(host: &Host, sandbox: &Sandbox) {
    let address = &sandbox.addresses("eth0")[0];
    assert!(host.pings(address.split('/').next().unwrap()), "{address}");
}

/// Returns whether the message sets an `fq_codel`, which this host's kernel lacks.
fn is_refused_queue(host: &Host, line: &str) -> bool {
    let lacks = || {
        let outcome = host.plugin("cnitool").argument("doctor").run();
        outcome.stdout.contains("sch_fq_codel")
    };
    line.contains("fq_codel") && lacks()
}

#[test]
fn second_add_changes_nothing_and_returns_the_same_result() {
    let host = Host::new();
    let a = host.sandbox("a");
    let (_, network) = chain(&host, &a);
    let file = host.dir().join("trace");
    let subnets = json!(["192.0.2.0/24", "2001:db8::/32"]);
    let some = network.clone().with("shapedSubnets", subnets.clone());
    let others = network.clone().with("unshapedSubnets", subnets);
    for network in [network.clone(), some, others, network] {
        let result = network.add(&a);
        let before = host.snapshot();
        let again = Trace::of(&network.on("ADD", &a), &file);
        let asked = again.calls("sendto");
        assert!(
            asked
                .iter()
                .any(|call| call.line().contains("RTM_GETQDISC"))
        );
        for call in asked {
            let changes = ["RTM_NEW", "RTM_DEL", "RTM_SET"];
            // Without fq_codel, every ADD tries to set one, and the kernel refuses it.
            let is_change = changes.iter().any(|it| call.line().contains(it))
                && !is_refused_queue(&host, call.line());
            assert!(!is_change, "{}", call.line());
        }
        host.snapshot().assert_same_as(&before);
        assert_eq!(network.add(&a), result);
        network.check(&a, &result).ok();
    }
}

#[test]
fn check_reports_differences_of_limits_for_subnets() {
    let host = Host::new();
    let a = host.sandbox("a");
    let (link, network) = chain(&host, &a);
    let network = network.with("shapedSubnets", json!(["192.0.2.0/24", "2001:db8::/32"]));
    let result = network.add(&a);
    let change = |link: &str, rate: u32, words: &str| match words {
        "class" => format!(
            "class change dev {link} classid b0:1 htb rate {rate}mbit burst 62500 cburst 62500"
        ),
        words => words.replace("LINK", link),
    };
    for words in [
        "class",
        "filter del dev LINK parent b0: pref 2",
        "qdisc del dev LINK parent b0:1",
        "qdisc del dev LINK root",
    ] {
        network.check(&a, &result).ok();
        host.tc(&change(&link, 11, words));
        network.check(&a, &result).error().expect(100, &[&link]);
        network.add(&a);
        network.check(&a, &result).ok();
        a.tc(&change("eth0", 21, words));
        network.check(&a, &result).error().expect(100, &["eth0"]);
        network.add(&a);
    }
    let all = network.clone().without("shapedSubnets");
    let refusal = all.check(&a, &result).error();
    refusal.expect(100, &[&link, "eth0"]);
}

#[test]
fn foreign_hooks_and_their_filters_are_left() {
    let host = Host::new();
    let a = host.sandbox("a");
    keep_the_tables(&host);
    for hook in ["clsact", "handle ffff: ingress"] {
        let (link, network) = chain(&host, &a);
        host.tc(&format!("qdisc add dev {link} {hook}"));
        let foreign = "ingress prio 1 protocol ip u32 match ip dst 203.0.113.0/24 flowid 9:9";
        host.tc(&format!("filter add dev {link} {foreign}"));
        let before = host.snapshot();
        for _ in 0..2 {
            let result = network.add(&a);
            network.check(&a, &result).ok();
            let filters = filters(&host, &link);
            assert!(
                filters.len() == 1 && filters[0].contains("9:9"),
                "{filters:#?}"
            );
        }
        expect_reached(&host, &a);
        network.del(&a);
        host.tc(&format!("qdisc delete dev {link} root"));
        host.snapshot().assert_same_as(&before);
        host.bridge_v4().del(&a);
    }
}

#[test]
fn foreign_root_qdisc_of_the_container_is_named_and_the_backstop_stays() {
    let host = Host::new();
    keep_the_tables(&host);
    let a = host.sandbox("a");
    let (_, network) = chain(&host, &a);
    let (path, before) = (a.path().to_str().unwrap(), host.snapshot());
    a.tc("qdisc add dev eth0 root handle 7: pfifo");
    let words = [path, "eth0", "pfifo 7:", "tc qdisc del dev eth0 root"];
    network.on("ADD", &a).error().expect(100, &words);
    // The limit towards the container is removed again.
    host.snapshot().assert_same_as(&before);
    a.tc("qdisc del dev eth0 root");
    let result = network.add(&a);
    let element = backstop(&host, &a);
    assert!(element.contains("limit rate"), "{element}");
    a.tc("qdisc replace dev eth0 root handle 7: pfifo");
    network.on("ADD", &a).error().expect(100, &words);
    let check = network.check(&a, &result).error();
    check.expect(100, &["eth0 has qdisc pfifo 7: of another program"]);
    assert_eq!(backstop(&host, &a), element);
    expect_reached(&host, &a);
    network.del(&a);
    assert_eq!(backstop(&host, &a), "");
    assert_eq!(a.qdiscs("eth0")[0]["handle"], "7:");
}

#[test]
fn del_without_records_removes_the_backstop() {
    let host = Host::new();
    for forgets in [false, true] {
        let a = host.sandbox("a");
        let (_, network) = chain(&host, &a);
        network.add(&a);
        assert_ne!(backstop(&host, &a), "");
        host.run("rm", &["-r", "/run/cni/bandwidth"]);
        if forgets {
            // The runtime has lost the result, too, and the sandbox is gone.
            a.remove();
            let network = network.without("prevResult");
            network.on("DEL", &a).without("CNI_NETNS").ok();
        } else {
            network.del(&a);
            host.bridge_v4().del(&a);
            a.remove();
        }
        assert_eq!(backstop(&host, &a), "", "{forgets}");
    }
}

#[test]
fn interface_that_is_no_veth_is_refused_although_the_result_lists_one() {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = host.bridge_v4().on("ADD", &a).ifname("net1").ok();
    let limits = json!({"ingressRate": 10_000_000, "egressRate": 20_000_000});
    let network = host
        .bandwidth()
        .with("runtimeConfig.bandwidth", limits)
        .with("prevResult", result);
    host.ip("link add parent type bridge");
    host.ip("link add link parent name card type macvlan");
    host.ip("link set card netns a name eth0");
    for kind in ["macvlan", "bridge", "veth"] {
        match kind {
            "macvlan" => {}
            "veth" => drop(a.ip("link add eth0 type veth peer name eth1")),
            kind => drop(a.ip(&format!("link add eth0 type {kind}"))),
        }
        let before = host.snapshot();
        let refusal = network.on("ADD", &a).error();
        refusal.expect(7, &["prevResult", "eth0", kind, "bridge or ptp"]);
        host.snapshot().assert_same_as(&before);
        assert!(a.qdiscs("net1").is_empty());
        a.ip("link delete eth0");
    }
    network.on("ADD", &a).ifname("net1").ok();
}

#[test]
fn foreign_root_qdisc_is_an_error_that_names_it() {
    let host = Host::new();
    keep_the_tables(&host);
    let a = host.sandbox("a");
    let (link, network) = chain(&host, &a);
    host.tc(&format!("qdisc add dev {link} root handle 7: htb"));
    let before = host.snapshot();
    let refusal = network.on("ADD", &a).error();
    refusal.expect(100, &[&link, "htb 7:", "another program"]);
    host.snapshot().assert_same_as(&before);
    let refusal = network
        .check(&a, network.config().get("prevResult").unwrap())
        .error();
    refusal.expect(100, &["htb 7:"]);
}

/// Makes the n-th message to the kernel fail, for every n. Each ADD has its own sandbox with a name
/// of fixed length.
fn every_message(harm: Harm, mut judge: impl FnMut(&Host, &Sandbox, &Network<'_>)) {
    let host = Host::new();
    let file = host.dir().join("trace");
    let first = host.sandbox("f00");
    let (_, network) = chain(&host, &first);
    let trace = Trace::of(&network.on("ADD", &first), &file);
    let calls = trace.calls("sendto");
    assert!(calls.len() >= 9, "{}", calls.len());
    for (number, call) in calls.iter().enumerate() {
        let a = host.sandbox(&format!("a{number:02}"));
        let (_, network) = chain(&host, &a);
        let before = host.snapshot();
        let fault = call.with(harm);
        let outcome = fault.strikes(&network.on("ADD", &a), &file).run();
        if outcome.status.code() == Some(1) {
            outcome.error();
            let left = host.snapshot().differences(&before);
            assert!(left.is_empty(), "{fault}: {left:#?}");
            assert!(a.qdiscs("eth0").is_empty(), "{fault}");
        }
        judge(&host, &a, &network);
        network.del(&a);
        host.bridge_v4().del(&a);
        a.remove();
    }
}

#[test]
fn add_fails_if_the_token_bucket_disappears_before_its_queue_is_set() {
    let host = Host::new();
    let [a, b] = ["a00", "b00"].map(|name| host.sandbox(name));
    let file = host.dir().join("trace");
    let [first, network] = [&a, &b].map(|sandbox| {
        let (_, network) = chain(&host, sandbox);
        network.with("runtimeConfig.bandwidth.egressRate", 0)
    });
    let trace = Trace::of(&first.on("ADD", &a), &file);
    // After a refused fq_codel, ADD reads the TBF.
    let answers = trace.calls("recvfrom");
    let mut answers = answers.iter().rev();
    let read = answers.find(|it| it.line().contains("RTM_NEWQDISC"));
    let read = read.expect("this kernel has fq_codel: nothing was refused");
    let gone = read.with(Harm::Answer(Errno::ENOENT));
    let refusal = gone.strikes(&network.on("ADD", &b), &file).error();
    refusal.expect(100, &["set fq_codel b1: on b0:1"]);
}

#[test]
fn add_that_was_killed_anywhere_can_be_repeated() {
    every_message(Harm::Kill, |host, a, network| {
        let result = network.add(a);
        network.check(a, &result).ok();
        expect_reached(host, a);
    });
}

#[test]
fn add_that_was_killed_anywhere_leaves_nothing_behind_its_del() {
    every_message(Harm::Kill, |host, a, network| {
        network
            .clone()
            .without("prevResult")
            .on("DEL", a)
            .without("CNI_NETNS")
            .ok();
        assert_eq!(backstop(host, a), "");
        assert!(!record(a.name()).exists());
    });
}

#[test]
fn add_that_the_kernel_refuses_anything_undoes_itself_and_can_be_repeated() {
    every_message(Harm::Refusal, |_, a, network| {
        let result = network.add(a);
        network.check(a, &result).ok();
    });
}

#[test]
fn what_the_kernel_lacks_is_named() {
    let host = Host::new();
    // The recorded run has to send as many messages as the later ones.
    keep_the_tables(&host);
    let a = host.sandbox("a");
    let (_, network) = chain(&host, &a);
    let file = host.dir().join("trace");
    let trace = Trace::of(&network.on("ADD", &a), &file);
    network.del(&a);
    host.bridge_v4().del(&a);
    let mut named = Vec::new();
    for call in trace.calls("sendto") {
        let (_, network) = chain(&host, &a);
        let add = network.on("ADD", &a);
        let outcome = call.with(Harm::Refusal).strikes(&add, &file).run();
        if let Some((_, rest)) = outcome.stdout.split_once("the kernel lacks ") {
            named.push(rest.split([',', ' ']).next().unwrap().to_owned());
        }
        network.del(&a);
        host.bridge_v4().del(&a);
    }
    // Each end of the pair has one.
    assert_eq!(named, ["sch_tbf", "sch_tbf"]);
}
