//! bridge: changes of the host that it makes, and those that it must not make.

use tests::{Capture, Dnsmasq, Host, Place as _, Saying, eventually};

const FORWARDING: [&str; 2] = ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"];

fn values(host: &Host, keys: [&str; 2]) -> [String; 2] {
    keys.map(|key| host.sysctl(key).unwrap())
}

#[test]
fn forwarding_is_enabled_for_each_family_that_has_a_gateway() {
    let host = Host::new();
    assert_eq!(values(&host, FORWARDING), ["0", "0"]);
    host.bridge_v4().add(&host.sandbox("a"));
    assert_eq!(values(&host, FORWARDING), ["1", "0"]);
    host.bridge().add(&host.sandbox("b"));
    assert_eq!(values(&host, FORWARDING), ["1", "1"]);
}

#[test]
fn a_host_without_bridge_netfilter_is_warned() {
    let host = Host::new();
    if host.sysctl("net/bridge/bridge-nf-call-iptables").is_some() {
        host.hide("/proc/sys/net/bridge");
    }
    let a = host.sandbox("a");
    let outcome = host.bridge().on("ADD", &a).run();
    outcome.ok();
    let told = &outcome.stderr;
    assert_eq!(
        told.matches("br_netfilter is not loaded").count(),
        1,
        "{told}"
    );
    assert!(told.contains("modprobe br_netfilter"), "{told}");
    assert!(a.pings("10.1.0.1"));
    let b = host.sandbox("b");
    let outcome = host
        .bridge()
        .with("bridgeNfCall", false)
        .on("ADD", &b)
        .run();
    outcome.ok();
    assert!(!outcome.stderr.contains("br_netfilter"), "{outcome:?}");
}

#[test]
fn the_bridge_hears_no_router_advertisements() {
    for dual_stack in [true, false] {
        let host = Host::new();
        let a = host.sandbox("a");
        let network = if dual_stack {
            host.bridge()
        } else {
            host.bridge_v4()
        };
        network.add(&a);
        assert_eq!(host.sysctl("net/ipv6/conf/cni0/accept_ra").unwrap(), "0");
        // A rogue container that advertises itself as a router must not become the host's router.
        a.ip("address add 2001:db8:bad::1/64 dev eth0 nodad");
        let range = "--dhcp-range=2001:db8:bad::,ra-only,64";
        let _rogue = Dnsmasq::start(&a, "eth0", &["--enable-ra", range]);
        let mut capture = Capture::start(&host);
        assert!(capture.sees(|frame| frame.says == Saying::Router));
        assert_eq!(host.ip("-6 route show default"), "");
        assert!(
            !host
                .addresses("cni0")
                .iter()
                .any(|address| address.starts_with("2001:db8:bad:"))
        );
    }
}

#[test]
fn a_default_route_learnt_from_router_advertisements_survives() {
    let host = Host::new();
    host.set_sysctl("net/ipv6/conf/default/accept_ra", "1");
    let outside = host.outside();
    outside.ip("address add 2001:db8:1::1/64 dev outside nodad");
    let range = "--dhcp-range=2001:db8:1::,ra-only,64";
    let _router = Dnsmasq::start(
        &outside,
        "outside",
        &["--enable-ra", "--ra-param=outside,10,1800", range],
    );
    let learnt = || host.ip("-6 route show default");
    assert!(
        eventually(|| learnt().contains("proto ra")),
        "no router advertisement came"
    );
    let outcome = host.bridge().on("ADD", &host.sandbox("a")).run();
    outcome.ok();
    assert_eq!(host.sysctl(FORWARDING[1]).unwrap(), "1");
    assert_eq!(host.sysctl("net/ipv6/conf/uplink/accept_ra").unwrap(), "2");
    assert!(learnt().contains("proto ra"), "{:?}", learnt());
    assert!(
        outcome.stderr.contains("uplink") && outcome.stderr.contains("accept_ra"),
        "{outcome:?}"
    );
}

#[test]
fn an_address_learnt_from_router_advertisements_survives_without_a_default_route() {
    let host = Host::new();
    host.set_sysctl("net/ipv6/conf/default/accept_ra", "1");
    let outside = host.outside();
    outside.ip("address add 2001:db8:1::1/64 dev outside nodad");
    let range = "--dhcp-range=2001:db8:1::,ra-only,64";
    // With a lifetime of 0, the router is no default router.
    let lifetime = "--ra-param=outside,10,0";
    let _router = Dnsmasq::start(&outside, "outside", &["--enable-ra", lifetime, range]);
    let learnt = || host.ip("-6 address show dev uplink scope global dynamic");
    assert!(
        eventually(|| learnt().contains("2001:db8:1:")),
        "no router advertisement came"
    );
    assert_eq!(host.ip("-6 route show default"), "");
    let outcome = host.bridge().on("ADD", &host.sandbox("a")).run();
    outcome.ok();
    assert_eq!(host.sysctl(FORWARDING[1]).unwrap(), "1");
    assert_eq!(host.sysctl("net/ipv6/conf/uplink/accept_ra").unwrap(), "2");
    let told = outcome.stderr;
    assert!(
        told.contains("uplink") && told.contains("accept_ra"),
        "{told}"
    );
    // A link that comes up asks for an advertisement if the kernel accepts one. The addresses of the
    // link were deleted when it went down.
    host.ip("link set uplink down");
    assert_eq!(learnt(), "");
    host.ip("link set uplink up");
    assert!(eventually(|| learnt().contains("2001:db8:1:")));
}

#[test]
fn an_address_advertised_on_a_bridge_of_another_program_does_not_make_it_an_uplink() {
    let host = Host::new();
    host.set_sysctl("net/ipv6/conf/default/accept_ra", "1");
    host.ip("link add other type bridge");
    host.ip("link set other up");
    // The same lifetime as that of an address from a router advertisement.
    host.ip("address add 2001:db8:bad::2/64 dev other valid_lft 1800 preferred_lft 1800");
    host.bridge().add(&host.sandbox("a"));
    assert_eq!(host.sysctl(FORWARDING[1]).unwrap(), "1");
    assert_eq!(host.sysctl("net/ipv6/conf/other/accept_ra").unwrap(), "1");
}

#[test]
fn ipv4_works_on_a_host_without_ipv6() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.set_sysctl("net/ipv6/conf/all/disable_ipv6", "1");
    a.set_sysctl("net/ipv6/conf/all/disable_ipv6", "1");
    host.bridge_v4().add(&a);
    assert_eq!(a.addresses("eth0"), ["10.1.0.2/24"]);
    assert!(a.pings("10.1.0.1"));
    assert_eq!(a.link_local_addresses("eth0"), Vec::<String>::new());
    host.bridge_v4().del(&a);
}

#[test]
fn ipv4_works_where_the_kernel_has_no_ipv6_at_all() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.set_sysctl("net/ipv6/conf/all/disable_ipv6", "1");
    a.set_sysctl("net/ipv6/conf/all/disable_ipv6", "1");
    host.hide("/proc/sys/net/ipv6");
    host.bridge_v4().add(&a);
    assert!(a.pings("10.1.0.1"));
    host.bridge_v4().del(&a);
    host.loopback().add(&a);
}

#[test]
fn ipv6_works_where_new_links_have_it_disabled() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    for key in ["default", "all"] {
        host.set_sysctl(&format!("net/ipv6/conf/{key}/disable_ipv6"), "1");
        a.set_sysctl(&format!("net/ipv6/conf/{key}/disable_ipv6"), "1");
    }
    b.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1");
    let network = host.bridge();
    network.add(&a);
    network.add(&b);
    assert_eq!(host.addresses("cni0"), ["10.1.0.1/24", "fd00:1::1/64"]);
    assert!(a.pings("fd00:1::1") && a.pings("fd00:1::3") && b.pings("fd00:1::2"));
}

#[test]
fn ipv6_addresses_survive_a_link_that_goes_down_and_up() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.bridge().add(&a);
    a.ip("link set eth0 down");
    a.ip("link set eth0 up");
    assert_eq!(a.addresses("eth0"), ["10.1.0.2/24", "fd00:1::2/64"]);
}

#[test]
fn sysctls_that_are_right_need_not_be_writable() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.bridge_v4().add(&a);
    host.read_only("/proc/sys");
    host.bridge_v4().add(&b);
    assert!(b.pings("10.1.0.2"));
}

#[test]
fn a_sysctl_that_is_wrong_and_cannot_be_written_is_named() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.bridge_v4().add(&a);
    host.set_sysctl("net/ipv4/ip_forward", "0");
    host.read_only("/proc/sys");
    let before = host.snapshot();
    let refusal = host.bridge_v4().on("ADD", &b).error();
    assert!(refusal.mentions("forward"), "{refusal:?}");
    host.snapshot().assert_same_as(&before);
    assert!(!b.has_link("eth0"));
}

#[test]
fn a_bridge_that_was_down_comes_up() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.bridge().add(&a);
    host.ip("link set cni0 down");
    host.bridge().add(&b);
    assert!(b.pings("10.1.0.1") && b.pings("fd00:1::1") && b.pings("10.1.0.2"));
}

#[test]
fn a_deleted_gateway_address_is_added_again() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    host.bridge().add(&a);
    host.ip("address flush dev cni0 scope global");
    host.bridge().add(&b);
    assert_eq!(host.addresses("cni0"), ["10.1.0.1/24", "fd00:1::1/64"]);
    assert!(b.pings("10.1.0.1") && b.pings("fd00:1::1"));
}

#[test]
fn bridge_that_is_no_gateway_is_made_where_sysctls_cannot_be_written() {
    let host = Host::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    host.set_sysctl("net/ipv6/conf/default/accept_ra", "1");
    host.read_only("/proc/sys");
    let network = host.bridge().with("isGateway", false);
    let outcome = network.on("ADD", &a).run();
    let result = outcome.ok();
    let told = &outcome.stderr;
    assert!(
        told.contains("cni0.accept_ra") && told.contains("router advertisements"),
        "{told}"
    );
    network.add(&b);
    assert!(eventually(|| b.pings("10.1.0.2") && b.pings("fd00:1::2")));
    assert_eq!(network.check(&a, &result).ok(), serde_json::Value::Null);
    let refusal = host.bridge().on("ADD", &c).error();
    assert!(refusal.mentions("accept_ra"), "{refusal:?}");
}
