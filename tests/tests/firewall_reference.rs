//! firewall beside pods that the reference's firewall attached, and the other way round.

use tests::{Host, Place as _};

fn sh(host: &Host, line: &str) -> String {
    host.run("sh", &["-ec", line])
}

/// The jumps in the order of the chains, without rules for single pods.
fn jumps(host: &Host) -> Vec<String> {
    let listed = sh(host, "iptables-nft -S FORWARD; iptables-nft -S CNI-FORWARD");
    let jumps = listed.lines().filter_map(|it| it.split_once("-j CNI-"));
    jumps.map(|it| it.1.to_owned()).collect()
}

#[test]
fn pods_of_both_pass_and_end_in_any_order() {
    for is_reference_first in [true, false] {
        let host = Host::new();
        sh(
            &host,
            "for p in iptables-nft ip6tables-nft; do $p -P FORWARD DROP; done",
        );
        let fence = host.fence();
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        let ours = fence.join(&a, &[]).with("backend", "iptables");
        let theirs = fence
            .join(&b, &[])
            .with("backend", "iptables")
            .by_reference();
        let mut adds = [(&ours, &a), (&theirs, &b)];
        if is_reference_first {
            adds.reverse();
        }
        for (firewall, pod) in adds {
            firewall.on("ADD", pod).ok();
        }
        assert_eq!([fence.opens(&a), fence.opens(&b)], [[true; 2]; 2]);
        // Each recognises the other's jumps.
        assert_eq!(jumps(&host), ["FORWARD", "ADMIN"]);
        theirs.check(&b, &theirs.config()["prevResult"]).ok();
        ours.check(&a, &ours.config()["prevResult"]).ok();
        theirs.del(&b);
        assert_eq!([fence.opens(&a), fence.opens(&b)], [[true; 2], [false; 2]]);
        theirs.on("ADD", &b).ok();
        ours.del(&a);
        assert_eq!([fence.opens(&a), fence.opens(&b)], [[false; 2], [true; 2]]);
    }
}

/// The reference's rules for a pod stay until its own DEL.
#[test]
fn permission_given_by_the_reference_survives_an_exchange_of_executables() {
    let host = Host::new();
    sh(
        &host,
        "iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP",
    );
    let fence = host.fence();
    let a = host.sandbox("a");
    let ours = fence.join(&a, &[]).with("backend", "iptables");
    let result = &ours.config()["prevResult"];
    ours.by_reference().on("ADD", &a).ok();
    ours.check(&a, result)
        .error()
        .expect(100, &["cni:pods/a/eth0"]);
    ours.del(&a);
    assert_eq!(fence.opens(&a), [true; 2]);
    // A later ADD of ours needs nothing of them.
    sh(
        &host,
        "iptables-nft -F CNI-FORWARD; ip6tables-nft -F CNI-FORWARD",
    );
    assert_eq!(fence.opens(&a), [false; 2]);
    ours.add(&a);
    ours.check(&a, result).ok();
    assert_eq!(fence.opens(&a), [true; 2]);
}
