//! Tests with foreign tables that nft(8) and iptables create: reads them from the real kernel and
//! loads them into another namespace.

use nft::Family;

use crate::{enter_new_namespace, run};

#[test]
fn forward_chains_of_nft_and_iptables_are_known() {
    let connection = enter_new_namespace();
    let families = [Family::Inet, Family::Ipv4, Family::Ipv6];
    assert_eq!(connection.chains(&families).unwrap(), []);
    run("nft add table inet filter");
    run("nft 'add chain inet filter gate { type filter hook forward priority 0 ; }'");
    run("nft 'add chain inet filter input { type filter hook input priority 0 ; }'");
    run("nft add chain inet filter other");
    run("iptables-nft -P FORWARD DROP");
    run("ip6tables-nft -P FORWARD DROP");
    let chains = connection.chains(&families).unwrap().into_iter();
    let forward = chains.filter(|it| it.is_forward);
    let forward: Vec<_> = forward.map(|it| (it.family, it.name)).collect();
    let expected = [
        (Family::Inet, "gate"),
        (Family::Ipv4, "FORWARD"),
        (Family::Ipv6, "FORWARD"),
    ];
    assert_eq!(
        forward,
        expected.map(|(family, name)| (family, name.to_owned()))
    );
}

/// Covers all kinds of rules that nft(8) and iptables know and this kernel supports.
#[test]
fn rules_are_the_same_in_another_namespace() {
    let connection = enter_new_namespace();
    for line in [
        "add table inet guard",
        "add chain inet guard gate { type filter hook forward priority 0 ; policy drop ; }",
        "add chain inet guard pods",
        "add counter inet guard c { packets 7 bytes 77 }",
        "add set inet guard s { type ipv4_addr . inet_service ; flags interval ; }",
        "add element inet guard s { 10.1.0.0/16 . 80-90 comment \"web\" }",
        "add map inet guard m { type ifname : verdict ; }",
        "add element inet guard m { cni0 : jump pods, cni1 : drop }",
        "add rule inet guard gate iifname vmap @m",
        "add rule inet guard gate ct state established counter accept",
        "add rule inet guard gate tcp dport 80-90 counter name c accept",
        "add rule inet guard gate ip saddr . tcp dport @s log prefix \"web\" accept",
        "add rule inet guard pods limit rate 5/second burst 7 packets reject comment \"slow\"",
        "add table bridge frames",
        "add chain bridge frames in { type filter hook input priority -5 ; }",
        "add rule bridge frames in ether saddr 02:00:00:00:00:01 drop",
        "add table ip6 asleep { flags dormant ; }",
    ] {
        run(&format!("nft '{line}'"));
    }
    for line in [
        "-A FORWARD -p tcp -m multiport --dports 1,2 -j DROP",
        "-A FORWARD -m conntrack --ctstate INVALID -j DROP",
        "-t nat -A POSTROUTING -s 10.1.0.0/16 -j MASQUERADE --random-fully",
    ] {
        run(&format!("iptables-nft {line}"));
    }
    let listed = || run("nft list ruleset; iptables-nft-save | grep -v '^#'");
    let (before, ruleset) = (listed(), connection.ruleset().unwrap());
    let other = enter_new_namespace();
    let copied = other.load(&ruleset).unwrap();
    assert!(copied.left_out.is_empty(), "{copied:?}");
    assert_eq!(listed(), before);
}
