//! firewall beside pods that the reference's firewall attached, and the other way round.

use tests::{Host, Place as _};

/// The jumps in the order of the chains, without rules for single pods.
fn jumps(host: &Host) -> Vec<String> {
    let listed = host.sh("iptables-nft -S FORWARD; iptables-nft -S CNI-FORWARD");
    let jumps = listed.lines().filter_map(|it| it.split_once("-j CNI-"));
    jumps.map(|it| it.1.to_owned()).collect()
}

#[test]
fn pods_of_both_pass_and_end_in_any_order() {
    for is_reference_first in [true, false] {
        let host = Host::new();
        host.sh("for p in iptables-nft ip6tables-nft; do $p -P FORWARD DROP; done");
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

/// Rules of an attachment stay until its DEL, whichever implementation that is of.
#[test]
fn permission_given_by_the_reference_lasts_until_del() {
    for program in ["iptables-nft", "iptables-legacy"] {
        let host = Host::new();
        let both = |line: &str| {
            let other = line.replace("iptables", "ip6tables");
            host.sh(&format!("{line}; {other}"))
        };
        both(&format!("{program} -P FORWARD DROP"));
        let fence = host.fence();
        let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
        // The reference executes `iptables`.
        host.sh(&format!(
            "mkdir /run/bin; for p in iptables ip6tables; do \
                 ln -s $(command -v ${{p%tables}}tables-{}) /run/bin/$p; done",
            program.rsplit('-').next().unwrap()
        ));
        let path = format!("/run/bin:{}", std::env::var("PATH").unwrap());
        let [ours, other] = [&a, &b].map(|it| fence.join(it, &[]).with("backend", "iptables"));
        for (firewall, pod) in [(&ours, &a), (&other, &b)] {
            let add = firewall.by_reference().on("ADD", pod);
            add.env("PATH", &path).ok();
        }
        assert_eq!([fence.opens(&a), fence.opens(&b)], [[true; 2]; 2]);
        let result = &ours.config()["prevResult"];
        ours.check(&a, result)
            .error()
            .expect(100, &["cni:pods/a/eth0"]);
        assert_eq!(fence.opens(&a), [true; 2]);
        ours.del(&a);
        assert_eq!([fence.opens(&a), fence.opens(&b)], [[false; 2], [true; 2]]);
        let listed = both(&format!("{program} -S CNI-FORWARD"));
        // Two rules of each family are left, and the jumps.
        assert_eq!(listed.lines().count(), 8, "{listed}");
        ours.del(&a);
        ours.add(&a);
        ours.check(&a, result).ok();
        assert_eq!([fence.opens(&a), fence.opens(&b)], [[true; 2]; 2]);
    }
}

/// An operator's rules are not those of a pod.
#[test]
fn del_leaves_other_rules_with_the_address_of_the_pod() {
    let host = Host::new();
    let fence = host.fence();
    let a = host.sandbox("a");
    let ours = fence.join(&a, &[]).with("backend", "iptables");
    ours.by_reference().on("ADD", &a).ok();
    let address = ours.config()["prevResult"]["ips"][0]["address"].clone();
    let address = address.as_str().unwrap().split('/').next().unwrap();
    let rules = [
        format!("-s {address}/32 -j DROP"),
        format!("-d {address}/32 -j ACCEPT"),
        format!("-s {address}/32 -p tcp -j ACCEPT"),
        format!("-s {address}/32 -o uplink -j ACCEPT"),
    ];
    for rule in &rules {
        host.sh(&format!("iptables-nft -A CNI-FORWARD {rule}"));
    }
    ours.del(&a);
    let listed = host.sh("iptables-nft -S CNI-FORWARD");
    let left: Vec<_> = listed.lines().filter(|it| it.contains(address)).collect();
    let rules = rules.map(|it| format!("-A CNI-FORWARD {it}"));
    assert_eq!(left, rules);
}
