//! bandwidth on a host with leftovers of an interrupted ADD, of the reference or of other programs.

use nix::errno::Errno;
use serde_json::json;
use tests::faults::{Harm, Trace};
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

#[test]
fn limits_of_the_reference_are_checked_and_deleted() {
    let host = Host::new();
    let a = host.sandbox("a");
    let (_, network) = chain(&host, &a);
    let result = network.by_reference().add(&a);
    network.check(&a, &result).ok();
    let chosen = network
        .clone()
        .with("runtimeConfig.bandwidth.ingressBurst", 400_000);
    let refusal = chosen.check(&a, &result).error();
    refusal.expect(100, &["burst 50000 bytes"]);
    network.del(&a);
    assert!(host.ifbs().is_empty());
}

#[test]
fn limits_of_the_reference_by_classes_are_checked_and_deleted() {
    let host = Host::new();
    let a = host.sandbox("a");
    let (link, network) = chain(&host, &a);
    let result = network.by_reference().add(&a);
    let ifb = host.ifbs()[0]["ifname"].as_str().unwrap().to_owned();
    // Limits like those of 1.5.0 and 1.5.1: an unlimited and a limited class.
    for (link, rate) in [(&link, "10mbit"), (&ifb, "20mbit")] {
        host.tc(&format!("qdisc del dev {link} root"));
        host.tc(&format!(
            "qdisc add dev {link} root handle 1: htb default 30"
        ));
        let class = format!("class add dev {link} parent 1: classid");
        host.tc(&format!("{class} 1:1 htb rate 800gbit quantum 60000"));
        host.tc(&format!(
            "{class} 1:30 htb rate {rate} burst 500mb quantum 60000"
        ));
    }
    let asked = |bits: u64| {
        let network = network
            .clone()
            .with("runtimeConfig.bandwidth.ingressBurst", bits);
        network.with("runtimeConfig.bandwidth.egressBurst", bits)
    };
    asked(34_359_738_359).check(&a, &result).ok();
    let refusal = asked(400_000).check(&a, &result).error();
    refusal.expect(100, &[&link, &ifb]);
    let faster = network
        .clone()
        .with("runtimeConfig.bandwidth.ingressRate", 11_000_000);
    faster.check(&a, &result).error().expect(100, &[&link]);
    network.del(&a);
    assert!(host.ifbs().is_empty());
}

#[test]
fn limits_with_a_configured_burst_equal_the_references() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let chosen = |sandbox| {
        let (link, network) = chain(&host, sandbox);
        let network = network.with("runtimeConfig.bandwidth.ingressBurst", 400_000);
        (
            link,
            network.with("runtimeConfig.bandwidth.egressBurst", 800_000),
        )
    };
    let [(ours, network), (theirs, reference)] = [&a, &b].map(chosen);
    network.add(&a);
    let result = reference.by_reference().add(&b);
    let limit = |link: &str| {
        let options = &host.qdiscs(link)[0]["options"];
        ["rate", "burst", "lat"].map(|key| options[key].clone())
    };
    assert_eq!(limit(&ours), limit(&theirs));
    reference.check(&b, &result).ok();
    reference.by_reference().del(&b);
    network.by_reference().del(&a);
    assert!(
        host.ifbs().is_empty(),
        "the reference finds ours by its name"
    );
}

#[test]
fn add_takes_over_what_the_reference_left_half_done() {
    let host = Host::new();
    let a = host.sandbox("a");
    let (_, network) = chain(&host, &a);
    network.by_reference().add(&a);
    let result = network.add(&a);
    network.check(&a, &result).ok();
    assert_eq!(host.ifbs().len(), 1);
    assert_eq!(host.ifbs()[0]["ifalias"], "cni:pods/a/eth0");
    expect_reached(&host, &a);
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
    for change in [
        format!("tc class change dev {link} classid b0:1 htb rate 11mbit burst 62500 cburst 62500"),
        format!("tc filter del dev {link} parent b0: pref 2"),
        format!("tc filter del dev {link} ingress"),
        format!("tc qdisc del dev {link} parent b0:1"),
        format!("tc qdisc del dev {link} root"),
    ] {
        network.check(&a, &result).ok();
        host.run("sh", &["-c", &change]);
        network.check(&a, &result).error().expect(100, &[&link]);
        network.add(&a);
    }
    let all = network.clone().without("shapedSubnets");
    let refusal = all.check(&a, &result).error();
    refusal.expect(100, &[&link]);
}

#[test]
fn ifb_of_another_owner_is_not_changed() {
    let host = Host::new();
    let a = host.sandbox("a");
    let (_, network) = chain(&host, &a);
    let result = network.add(&a);
    let interfaces = result["interfaces"].as_array().unwrap();
    let name = interfaces.last().unwrap()["name"]
        .as_str()
        .unwrap()
        .to_owned();
    network.del(&a);
    for (kind, alias) in [("ifb", "cni:pods/a/eth9"), ("bridge", "")] {
        host.ip(&format!("link add {name} type {kind}"));
        host.run("ip", &["link", "set", &name, "alias", alias]);
        let result = network.add(&a);
        network.check(&a, &result).ok();
        network.del(&a);
        assert_eq!(host.link(&name)["linkinfo"]["info_kind"], kind);
        assert_eq!(host.ifbs().len(), usize::from(kind == "ifb"));
        host.ip(&format!("link delete {name}"));
    }
}

#[test]
fn foreign_hooks_and_their_filters_are_used_and_left() {
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
            assert_eq!(filters.len(), 2, "{filters:#?}");
            assert!(filters[0].contains("pref 1 ") && filters[0].contains("9:9"));
        }
        expect_reached(&host, &a);
        host.tc(&format!("filter delete dev {link} ingress pref 4"));
        host.tc(&format!("qdisc delete dev {link} root"));
        network.del(&a);
        host.snapshot().assert_same_as(&before);
        host.bridge_v4().del(&a);
    }
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
        let others = host.ifbs().len();
        network
            .clone()
            .without("prevResult")
            .on("DEL", a)
            .without("CNI_NETNS")
            .ok();
        assert!(host.ifbs().len() <= others);
        host.bridge_v4().del(a);
        let owner = format!("cni:pods/{}/eth0", a.name());
        assert!(
            host.ifbs()
                .iter()
                .all(|ifb| ifb["ifalias"] == "cni:pods/f00/eth0"),
            "{owner}"
        );
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
    assert_eq!(
        named,
        ["ifb", "sch_tbf", "sch_ingress", "act_mirred", "sch_tbf"]
    );
}
