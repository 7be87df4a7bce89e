use cni::result::Interface;
use nft::Protocol;

use super::*;

fn config(mappings: &[Mapping]) -> Config {
    Config {
        mappings: mappings.to_vec(),
        source_nat: SourceNat::Needed,
        localhost_guard: crate::LocalhostGuard::default(),
        conditions: crate::conditions::Conditions::default(),
    }
}

fn mapping(host: HostAddress) -> Mapping {
    Mapping {
        host_port: 8080.try_into().unwrap(),
        container_port: 80.try_into().unwrap(),
        protocol: Protocol::Tcp,
        host,
    }
}

/// Returns an ADD result with a bridge and two interfaces of the sandbox. It assigns each of
/// `addresses` to the interface with the given index.
fn result(addresses: &[(&str, Option<usize>)]) -> AddResult {
    let link = |name: &str, sandbox: Option<&str>| Interface {
        name: name.to_owned(),
        sandbox: sandbox.map(str::to_owned),
        ..Interface::default()
    };
    let ips = addresses.iter().map(|(address, interface)| IpConfig {
        interface: *interface,
        ..IpConfig::of(address.parse().unwrap())
    });
    AddResult {
        interfaces: vec![
            link("cni0", None),
            link("net1", Some("/run/netns/a")),
            link("eth0", Some("/run/netns/a")),
        ],
        ips: ips.collect(),
        ..AddResult::default()
    }
}

fn plan(host: HostAddress, addresses: &[(&str, Option<usize>)]) -> Plan {
    let eth0 = "eth0".parse().unwrap();
    Plan::new(config(&[mapping(host)]), &result(addresses), &eth0)
}

fn text(pods: &[IpAddr]) -> Vec<String> {
    pods.iter().map(ToString::to_string).collect()
}

#[test]
fn ports_are_forwarded_to_the_first_address_of_each_family_on_the_interface() {
    let all = [
        ("10.1.0.1/24", Some(0)),
        ("10.2.0.2/24", Some(1)),
        ("10.1.0.2/24", Some(2)),
        ("10.1.0.3/24", Some(2)),
        ("fd00::2/64", None),
    ];
    let plan = |addresses| plan(HostAddress::Any, addresses);
    assert_eq!(text(&plan(&all).pods()), ["10.1.0.2", "fd00::2"]);
    assert_eq!(text(&plan(&all[..2]).pods()), ["10.2.0.2"]);
    assert_eq!(text(&plan(&all[4..]).pods()), ["fd00::2"]);
}

#[test]
fn without_an_address_of_the_container_no_port_is_forwarded() {
    for addresses in [&[][..], &[("10.1.0.1/24", Some(0))]] {
        let plan = plan(HostAddress::Any, addresses);
        assert_eq!((plan.forwards.len(), plan.idle().count()), (0, 1));
    }
}

#[test]
fn port_of_the_other_family_is_not_forwarded() {
    let v4 = [("10.1.0.2/24", Some(2))];
    for host in [
        HostAddress::AnyOf(IpVersion::V6),
        HostAddress::One("2001:db8::1".parse().unwrap()),
    ] {
        let plan = plan(host, &v4);
        assert_eq!((plan.forwards.len(), plan.idle().count()), (0, 1));
    }
}

#[test]
fn localhost_may_leave_only_for_a_port_of_it() {
    let both = [("10.1.0.2/24", Some(2)), ("fd00::2/64", Some(2))];
    let one = |address: &str| HostAddress::One(address.parse().unwrap());
    for (host, is_let_out) in [
        (HostAddress::Any, true),
        (HostAddress::AnyOf(IpVersion::V4), true),
        (one("127.0.0.1"), true),
        (one("192.0.2.1"), false),
        (HostAddress::AnyOf(IpVersion::V6), false),
    ] {
        let plan = plan(host, &both);
        assert_eq!(plan.localnet().is_some(), is_let_out, "{host:?}");
    }
}
