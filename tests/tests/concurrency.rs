//! Many concurrent attachments, as on a starting node.

use std::collections::BTreeSet;
use std::thread;

use serde_json::Value;
use tests::traffic::tcp;
use tests::{Host, Place as _, Sandbox, at_once};

fn sandboxes(host: &Host, count: usize) -> Vec<Sandbox> {
    (0..count)
        .map(|number| host.sandbox(&format!("p{number}")))
        .collect()
}

#[test]
fn twenty_first_adds_share_one_bridge_that_did_not_exist() {
    let host = Host::new();
    let pods = sandboxes(&host, 20);
    let network = host.bridge();
    let results: Vec<Value> = at_once(&pods, |pod| network.add(pod));
    let all = |pointer: &str| -> BTreeSet<String> {
        let texts = results
            .iter()
            .map(|result| result.pointer(pointer).unwrap().to_string());
        texts.collect()
    };
    assert_eq!(all("/ips/0/address").len(), 20);
    assert_eq!(all("/ips/1/address").len(), 20);
    assert_eq!(all("/interfaces/1/name").len(), 20);
    assert_eq!(all("/interfaces/0/mac").len(), 1, "one bridge with one MAC");
    assert_eq!(host.addresses("cni0"), ["10.1.0.1/24", "fd00:1::1/64"]);
    let last = results[19]["ips"][0]["address"].as_str().unwrap();
    let last = last.split('/').next().unwrap();
    let reached = at_once(&pods[..19], |pod| pod.pings(last) && pod.pings("fd00:1::1"));
    assert!(reached.into_iter().all(|reached| reached));
    at_once(&pods, |pod| network.del(pod));
    assert_eq!(host.links(), ["cni0", "lo"]);
    assert!(host.leases("pods").is_empty());
}

/// Each ADD creates the table, or finds that another one has just created it.
#[test]
fn twenty_first_adds_are_all_masqueraded() {
    let host = Host::new();
    let outside = host.outside();
    let pods = sandboxes(&host, 20);
    let network = host
        .bridge()
        .with("isDefaultGateway", true)
        .with("ipMasq", true)
        .with("macspoofchk", true);
    at_once(&pods, |pod| network.add(pod));
    for pod in &pods {
        assert_eq!(tcp(pod, &outside, "192.0.2.2"), Some([192, 0, 2, 1].into()));
    }
    at_once(&pods, |pod| network.del(pod));
    assert_eq!(host.links(), ["cni0", "lo", "uplink"]);
    let rules = host.run("nft", &["list", "ruleset"]);
    assert!(
        !rules.contains("cni:") && !rules.contains("policy-"),
        "{rules}"
    );
}

#[test]
fn loopback_and_bridge_of_one_sandbox_run_side_by_side() {
    let host = Host::new();
    let pods = sandboxes(&host, 4);
    at_once(&pods, |pod| {
        thread::scope(|scope| {
            scope.spawn(|| host.loopback().on("ADD", pod).ifname("lo").ok());
            scope.spawn(|| host.bridge().add(pod));
        });
    });
    for pod in &pods {
        assert!(pod.pings("127.0.0.1") && pod.pings("10.1.0.1"));
    }
}

#[test]
fn adds_and_dels_of_different_sandboxes_do_not_disturb_each_other() {
    let host = Host::new();
    let pods = sandboxes(&host, 6);
    at_once(&pods, |pod| {
        for _ in 0..4 {
            let result = host.bridge().add(pod);
            assert!(pod.pings("10.1.0.1"));
            host.bridge().check(pod, &result).ok();
            host.bridge().del(pod);
        }
    });
    assert_eq!(host.links(), ["cni0", "lo"]);
    assert!(host.leases("pods").is_empty());
}

#[test]
fn one_of_several_adds_for_one_interface_wins_and_the_others_leave_it_alone() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.bridge();
    for _ in 0..5 {
        let outcomes = thread::scope(|scope| {
            let adds = [(); 6].map(|()| scope.spawn(|| network.on("ADD", &a).run()));
            adds.map(|add| add.join().unwrap())
        });
        let (won, lost): (Vec<_>, Vec<_>) = outcomes.iter().partition(|it| it.status.success());
        assert_eq!((won.len(), lost.len()), (1, 5), "{outcomes:#?}");
        for outcome in lost {
            outcome.error().expect(100, &["already"]);
        }
        assert!(a.pings("10.1.0.1") && a.pings("fd00:1::1"));
        assert_eq!(host.leases("pods").len(), 2);
        network.check(&a, &won[0].ok()).ok();
        network.del(&a);
        assert!(host.leases("pods").is_empty());
    }
}
