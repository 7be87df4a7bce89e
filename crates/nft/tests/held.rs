//! Tables of others as nft(8) and iptables make them, read from the real kernel; needs root or
//! `unshare -Urnm`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends at the first surprise"
)]

use std::process::Command;

use nft::{Connection, Family, HeldChain, HeldRule, Verdict};
use nix::sched::{CloneFlags, unshare};

/// Moves the test's own thread into a new namespace.
fn enter_new_namespace() -> Connection {
    unshare(CloneFlags::CLONE_NEWNET).expect("run as root or under: unshare -Urnm");
    Connection::open().unwrap()
}

fn run(line: &str) {
    let mut words = line.split(' ');
    let program = words.next().unwrap();
    let output = Command::new(program).args(words).output();
    let output = output.expect("install nftables and iptables");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
}

fn forward(connection: &Connection, family: Family) -> HeldChain {
    let chains = connection.chains(&[family]).unwrap().into_iter();
    let mut forward = chains.filter(|it| it.is_forward);
    forward.next().unwrap()
}

fn rules(connection: &Connection, chain: &HeldChain) -> Vec<HeldRule> {
    connection.rules(chain.family, &chain.table).unwrap()
}

#[test]
fn policies_of_nft_and_iptables_are_read() {
    let connection = enter_new_namespace();
    assert_eq!(
        connection.chains(&[Family::Inet, Family::Ipv4]).unwrap(),
        []
    );
    run("nft add table inet filter");
    run("nft add chain inet filter gate { type filter hook forward priority 0 ; policy drop ; }");
    run("nft add chain inet filter input { type filter hook input priority 0 ; }");
    run("nft add chain inet filter other");
    let chain = forward(&connection, Family::Inet);
    assert_eq!(
        (chain.table.as_str(), chain.name.as_str()),
        ("filter", "gate")
    );
    assert_eq!(chain.policy, Some(Verdict::Drop));
    let chains = connection.chains(&[Family::Inet]).unwrap();
    let policies: Vec<_> = chains.iter().map(|it| it.policy).collect();
    assert_eq!(policies, [chain.policy, Some(Verdict::Accept), None]);
    for (program, family) in [
        ("iptables-nft", Family::Ipv4),
        ("ip6tables-nft", Family::Ipv6),
    ] {
        run(&format!("{program} -P FORWARD DROP"));
        let chain = forward(&connection, family);
        assert_eq!(
            (chain.table.as_str(), chain.name.as_str()),
            ("filter", "FORWARD")
        );
        assert_eq!(chain.policy, Some(Verdict::Drop));
    }
}

#[test]
fn rules_tell_whom_they_are_for() {
    let connection = enter_new_namespace();
    run("nft add table inet filter");
    run("nft add chain inet filter gate { type filter hook forward priority 0 ; policy drop ; }");
    for (rule, link, network) in [
        ("iifname cni0 accept", true, false),
        ("oifname cni* counter accept", true, false),
        ("iifname eth0 accept", false, false),
        ("ip saddr 10.1.0.0/24 accept", false, true),
        ("ip daddr 10.0.0.0/12 accept", false, true),
        ("ip saddr 10.1.0.7 accept", false, true),
        ("ip saddr 10.2.0.0/16 accept", false, false),
        ("tcp dport 2561 accept", false, false),
        ("iifname != cni0 accept", false, false),
    ] {
        run("nft flush chain inet filter gate");
        run(&format!("nft add rule inet filter gate {rule}"));
        let chain = forward(&connection, Family::Inet);
        let [read] = rules(&connection, &chain).try_into().unwrap();
        let read: HeldRule = read;
        assert_eq!(read.chain, "gate");
        assert_eq!(read.verdict, Some(Verdict::Accept), "{rule}");
        assert!(!read.is_unconditional && !read.looks_up, "{rule}");
        assert_eq!(read.is_for_link("cni0"), link, "{rule}");
        let pods = "10.1.0.0/24".parse().unwrap();
        assert_eq!(read.is_for_network(pods), network, "{rule}");
    }
}

#[test]
fn what_every_packet_meets_is_told_from_what_some_do() {
    let connection = enter_new_namespace();
    run("nft add table inet filter");
    run("nft add chain inet filter gate { type filter hook forward priority 0 ; }");
    run("nft add chain inet filter other");
    for (rule, verdict, is_unconditional) in [
        ("counter reject", Some(Verdict::Drop), true),
        ("drop", Some(Verdict::Drop), true),
        ("log drop", Some(Verdict::Drop), true),
        ("ct state invalid drop", Some(Verdict::Drop), false),
        ("jump other", Some(Verdict::Chain), true),
        ("accept", Some(Verdict::Accept), true),
        ("counter", None, true),
    ] {
        run("nft flush chain inet filter gate");
        run(&format!("nft add rule inet filter gate {rule}"));
        let chain = forward(&connection, Family::Inet);
        let read = rules(&connection, &chain);
        let read: Vec<_> = read
            .iter()
            .map(|it| (it.verdict, it.is_unconditional))
            .collect();
        assert_eq!(read, [(verdict, is_unconditional)], "{rule}");
    }
    run("nft flush chain inet filter gate");
    run("nft add rule inet filter gate iifname { cni0, cni1 } accept");
    let chain = forward(&connection, Family::Inet);
    assert!(rules(&connection, &chain).iter().all(|it| it.looks_up));
}

#[test]
fn rules_of_iptables_are_read_as_those_of_nft() {
    let connection = enter_new_namespace();
    run("iptables-nft -A FORWARD -i cni0 -j ACCEPT");
    run("iptables-nft -A FORWARD -s 10.1.0.0/24 -j ACCEPT");
    run("iptables-nft -A FORWARD -j REJECT");
    let chain = forward(&connection, Family::Ipv4);
    let [link, network, rest] = rules(&connection, &chain).try_into().unwrap();
    let (link, network, rest): (HeldRule, HeldRule, HeldRule) = (link, network, rest);
    assert!(link.is_for_link("cni0") && link.verdict == Some(Verdict::Accept));
    assert!(network.is_for_network("10.1.0.0/24".parse().unwrap()));
    assert!(rest.is_unconditional && rest.verdict == Some(Verdict::Drop));
}
