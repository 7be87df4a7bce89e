//! Tests of links, addresses and routes on the real kernel; they need root or `unshare -Urnm`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends at the first surprise"
)]

use std::path::Path;
use std::time::{Duration, Instant};

use netlink::{
    Address, Connection, Dad, IpVersion, LinkChange, LinkKind, LinkLocalOrigin, MacAddress,
    Monitor, NewKind, NewLink, NewRoute, PortFlag, Request, VethEnd, VethPair, Wait,
};
use netns::{Netns, Sysctl};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

/// Moves the test's thread into a new namespace.
fn enter_new_namespace() -> Netns {
    unshare(CloneFlags::CLONE_NEWNET).expect("run as root or under: unshare -Urnm");
    Netns::open(Path::new("/proc/thread-self/ns/net")).unwrap()
}

fn other_namespace() -> Netns {
    std::thread::spawn(enter_new_namespace).join().unwrap()
}

const BRIDGE_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const HOST_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const CONTAINER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 3]);

struct Pair {
    host: Connection,
    container: Connection,
    sandbox: Netns,
    bridge: u32,
}

fn bridge(name: &str, mac: MacAddress) -> NewLink<'_> {
    NewLink {
        mac: Some(mac),
        mtu: Some(1400),
        ..NewLink::of(name, NewKind::Bridge)
    }
}

/// Creates a bridge that is up, and opens connections to the namespaces of both ends of a future
/// veth pair.
fn bridge_and_sandbox() -> Pair {
    enter_new_namespace();
    let sandbox = other_namespace();
    let host = Connection::open().unwrap();
    let container = Connection::open_in(&sandbox).unwrap();
    host.add_link(&bridge("br0", BRIDGE_MAC)).unwrap();
    host.execute(vec![Request::change_link("br0", &LinkChange::Up)])
        .unwrap();
    let bridge = host.link("br0").unwrap().index;
    Pair {
        host,
        container,
        sandbox,
        bridge,
    }
}

impl Pair {
    fn make(&self) -> netlink::Link {
        let pair = VethPair {
            host: VethEnd {
                name: "vethx",
                mac: HOST_MAC,
            },
            container: VethEnd {
                name: "eth0",
                mac: CONTAINER_MAC,
            },
            mtu: 1400,
            master: Some(self.bridge),
            alias: "cni:pods/c1/eth0",
            sandbox: &self.sandbox,
        };
        let hairpin = Request::change_link("vethx", &LinkChange::Port(PortFlag::Hairpin));
        self.host.add_veth(&pair, vec![hairpin]).unwrap();
        self.host.change_link("vethx", &[LinkChange::Up]).unwrap()
    }
}

#[test]
fn pair_is_made_in_place_with_all_that_was_asked() {
    let pair = bridge_and_sandbox();
    let host = pair.make();
    let container = pair.container.link("eth0").unwrap();
    assert_eq!(
        (&host.kind, host.mac, host.mtu),
        (&LinkKind::Veth, Some(HOST_MAC), 1400)
    );
    assert_eq!((host.master, host.is_up), (Some(pair.bridge), true));
    assert_eq!(host.alias.as_deref(), Some("cni:pods/c1/eth0"));
    assert!(
        host.port.unwrap().flags.contains(&PortFlag::Hairpin),
        "hairpin is read back"
    );
    assert_eq!(
        (container.mac, container.mtu, container.is_up),
        (Some(CONTAINER_MAC), 1400, false)
    );
    assert_eq!(
        (host.peer, container.peer),
        (Some(container.index), Some(host.index))
    );
    let sandbox = pair.host.namespace_id(&pair.sandbox).unwrap();
    assert!(sandbox.is_some() && host.peer_namespace == sandbox);
    assert_eq!(pair.host.namespace_id(&other_namespace()).unwrap(), None);
    assert_eq!(pair.host.link("br0").unwrap().mac, Some(BRIDGE_MAC));
}

#[test]
fn conf_of_links_and_hosts_is_read_and_set() {
    let pair = bridge_and_sandbox();
    pair.make();
    let conf = |family: &str, link: &str, name: &str, value: Option<&str>| {
        let key = Sysctl::new(&["net", family, "conf", link, name]);
        if let Some(value) = value {
            key.ensure(value).unwrap();
        }
        key.read().unwrap()
    };
    let bridge = || pair.host.link("br0").unwrap().ipv6.unwrap();
    for value in ["0", "1"] {
        conf("ipv6", "br0", "disable_ipv6", Some(value));
        assert_eq!(bridge().is_disabled, value == "1");
        conf("ipv4", "all", "forwarding", Some(value));
        assert_eq!(pair.host.forwards(IpVersion::V4).unwrap(), value == "1");
        conf("ipv6", "all", "forwarding", Some(value));
        assert_eq!(pair.host.forwards(IpVersion::V6).unwrap(), value == "1");
    }
    for (link_local, mode) in [(LinkLocalOrigin::None, "1"), (LinkLocalOrigin::Mac, "0")] {
        let changes = [LinkChange::LinkLocal(link_local)];
        let port = pair.host.change_link("vethx", &changes).unwrap();
        assert_eq!(port.ipv6.unwrap().link_local, link_local);
        assert_eq!(conf("ipv6", "vethx", "addr_gen_mode", None), mode);
    }
    assert_eq!(conf("ipv4", "vethx", "arp_notify", None), "0");
    let changes = [LinkChange::ArpNotify];
    pair.host.change_link("vethx", &changes).unwrap();
    assert_eq!(conf("ipv4", "vethx", "arp_notify", None), "1");
}

#[test]
fn links_have_the_address_that_follows_from_their_mac() {
    let pair = bridge_and_sandbox();
    let host = pair.make();
    let up = Request::change_link("eth0", &LinkChange::Up);
    pair.container.execute(vec![up]).unwrap();
    let wait = Wait {
        link: host.index,
        what: "a link-local address",
        deadline: Duration::from_secs(5),
    };
    let any = |addresses: &[Address]| !addresses.is_empty();
    let found = Monitor::new().wait_for_addresses(&pair.host, &wait, any);
    let found: Vec<_> = found.unwrap().iter().map(|it| it.address.ip()).collect();
    assert_eq!(found, [HOST_MAC.link_local()]);
}

#[test]
fn ports_are_counted_and_left_out_of_what_has_no_master() {
    let pair = bridge_and_sandbox();
    let count = || pair.host.port_count(pair.bridge).unwrap();
    assert_eq!(count(), 0);
    pair.make();
    pair.host.add_link(&bridge("br1", HOST_MAC)).unwrap();
    let other = pair.host.link("br1").unwrap().index;
    assert_eq!((count(), pair.host.port_count(other).unwrap()), (1, 0));
    let without = pair.host.links_without_master().unwrap();
    let names: Vec<_> = without.iter().map(|link| link.name.as_str()).collect();
    assert_eq!(names, ["lo", "br0", "br1"]);
    assert_eq!(pair.host.links().unwrap().len(), 4);
}

#[test]
fn port_is_waited_for_by_event() {
    let pair = bridge_and_sandbox();
    let mut monitor = Monitor::new();
    let host = pair.make();
    pair.container
        .execute(vec![Request::change_link("eth0", &LinkChange::Up)])
        .unwrap();
    let wait = Wait {
        link: host.index,
        what: "vethx to forward",
        deadline: Duration::from_secs(5),
    };
    let forwarding = |link: &netlink::Link| {
        link.port.as_ref().is_some_and(|port| port.is_enabled) && link.is_operational
    };
    monitor
        .wait_for_link(&pair.host, &wait, forwarding)
        .unwrap();
    let never = Wait {
        deadline: Duration::from_millis(20),
        ..wait
    };
    let error = monitor
        .wait_for_link(&pair.host, &never, |_| false)
        .unwrap_err();
    assert_eq!(error.to_string(), "waited 0.02 s for vethx to forward");
}

#[test]
fn change_without_event_is_noticed_by_reading_again() {
    let pair = bridge_and_sandbox();
    let host = pair.make();
    let mut monitor = Monitor::open().unwrap();
    let mut wait_until = |change: Duration, deadline: Duration| {
        let wait = Wait {
            link: host.index,
            what: "a change without event",
            deadline,
        };
        let begin = Instant::now();
        monitor.wait_for_link(&pair.host, &wait, |_| begin.elapsed() >= change)
    };
    let (soon, ms) = (Duration::from_millis(100), Duration::from_millis);
    wait_until(soon, ms(30_000)).expect("reads again long before the deadline");
    wait_until(soon, soon).expect("reads again at the deadline");
    wait_until(ms(30_000), soon).expect_err("gives up after the deadline");
}

#[test]
fn local_route_of_an_address_is_waited_for() {
    let pair = bridge_and_sandbox();
    let host = pair.make();
    let up = Request::change_link("eth0", &LinkChange::Up);
    pair.container.execute(vec![up]).unwrap();
    // The kernel adds the local route after duplicate address detection, which takes a second.
    let address = network("2001:db8::1/64");
    let add = Request::add_address(host.index, address, Dad::Perform);
    pair.host.execute(vec![add]).unwrap();
    let wait = Wait {
        link: host.index,
        what: "the local route",
        deadline: Duration::from_secs(10),
    };
    Monitor::new()
        .wait_for_local_routes(&pair.host, &wait, &[address.ip()])
        .unwrap();
}

#[test]
fn kernel_refusal_names_operation_object_and_the_kernels_words() {
    let pair = bridge_and_sandbox();
    let error = pair.host.add_link(&bridge("br0", BRIDGE_MAC)).unwrap_err();
    assert!(error.is_already_exists());
    assert!(
        error
            .to_string()
            .starts_with("create bridge br0: file exists"),
        "{error}"
    );
    let address = "10.1.0.1/24".parse().unwrap();
    let error = pair
        .host
        .execute(vec![Request::add_address(4711, address, Dad::Skip)]);
    let error = error.unwrap_err();
    assert_eq!(error.errno(), Some(Errno::ENODEV));
    let too_small = Request::change_link("br0", &LinkChange::Mtu(1));
    let error = pair.host.execute(vec![too_small]).unwrap_err().to_string();
    assert_eq!(
        error,
        "set the MTU of br0: invalid argument (mtu less than device minimum)"
    );
    assert!(pair.host.link("none").unwrap_err().is_not_found());
    assert_eq!(pair.host.find_link("none").unwrap(), None);
}

#[test]
fn first_refusal_of_a_batch_is_reported_and_the_rest_is_carried_out() {
    let pair = bridge_and_sandbox();
    let address = |text: &str| Request::add_address(pair.bridge, text.parse().unwrap(), Dad::Skip);
    let batch = vec![
        address("10.1.0.1/24"),
        address("10.1.0.1/24"),
        address("fd00::1/64"),
    ];
    let error = pair.host.execute(batch).unwrap_err();
    assert!(error.is_already_exists() && error.to_string().starts_with("add address 10.1.0.1/24"));
    let addresses = pair.host.addresses(pair.bridge).unwrap();
    let global: Vec<_> = addresses.iter().filter(|it| !it.is_link_local).collect();
    assert_eq!(global.len(), 2);
    assert!(
        global.iter().all(|it| !it.is_tentative),
        "detection is skipped"
    );
}

fn network(text: &str) -> ipnetwork::IpNetwork {
    text.parse().unwrap()
}

fn route(destination: &str, gateway: Option<&str>) -> NewRoute {
    NewRoute {
        gateway: gateway.map(|gateway| gateway.parse().unwrap()),
        ..NewRoute::on_link(network(destination), 0)
    }
}

#[test]
fn routes_keep_their_attributes() {
    let pair = bridge_and_sandbox();
    pair.make();
    let link = pair.container.link("eth0").unwrap().index;
    let route = |destination: &str, gateway: Option<&str>| NewRoute {
        link,
        ..route(destination, gateway)
    };
    let special = NewRoute {
        mtu: Some(1300),
        advmss: Some(1260),
        priority: Some(77),
        table: Some(1000),
        ..route("10.9.0.0/16", Some("10.1.0.1"))
    };
    pair.container
        .execute(vec![
            Request::add_address(link, network("10.1.0.2/24"), Dad::Skip),
            Request::add_address(link, network("fd00::2/64"), Dad::Skip),
            Request::change_link("eth0", &LinkChange::Up),
            Request::add_route(&route("0.0.0.0/0", Some("10.1.0.1"))),
            Request::add_route(&route("::/0", Some("fd00::1"))),
            Request::add_route(&route("10.8.0.0/16", None)),
            Request::add_route(&special),
        ])
        .unwrap();
    let routes = pair.container.routes().unwrap();
    let defaults: Vec<_> = routes
        .iter()
        .filter(|it| it.is_default() && it.table == 254)
        .collect();
    assert_eq!(defaults.len(), 2, "{routes:?}");
    assert!(defaults.iter().all(|it| it.links().eq([link])));
    let found = routes.iter().find(|it| it.table == 1000).unwrap();
    assert_eq!(
        (found.destination, found.priority),
        (network("10.9.0.0/16"), Some(77))
    );
    assert_eq!(found.gateway, Some("10.1.0.1".parse().unwrap()));
}

#[test]
fn latest_of_two_equal_routes_decides_if_it_is_prepended() {
    let pair = bridge_and_sandbox();
    pair.make();
    let eth0 = pair.container.link("eth0").unwrap().index;
    let lo = pair.container.link("lo").unwrap().index;
    let up = ["eth0", "lo"].map(|name| Request::change_link(name, &LinkChange::Up));
    pair.container.execute(up).unwrap();
    let destination = network("10.9.0.1/32");
    let decides = |place: fn(&NewRoute) -> Request, link| {
        let route = NewRoute::on_link(destination, link);
        pair.container.execute([place(&route)]).unwrap();
        pair.container.link_towards(destination.ip()).unwrap()
    };
    assert_eq!(decides(Request::add_route, eth0), Some(eth0));
    assert_eq!(decides(Request::add_route, lo), Some(eth0));
    pair.container
        .execute([Request::change_link("lo", &LinkChange::Down)])
        .unwrap();
    pair.container
        .execute([Request::change_link("lo", &LinkChange::Up)])
        .unwrap();
    assert_eq!(decides(Request::prepend_route, lo), Some(lo));
}

#[test]
fn address_without_route_makes_no_network_reachable() {
    let pair = bridge_and_sandbox();
    pair.make();
    let link = pair.container.link("eth0").unwrap().index;
    let add = |address| Request::add_address_without_route(link, network(address), Dad::Skip);
    let requests = [
        add("10.1.0.2/24"),
        add("fd00::2/64"),
        Request::change_link("eth0", &LinkChange::Up),
    ];
    pair.container.execute(requests).unwrap();
    for neighbour in ["10.1.0.3", "fd00::3"] {
        let route = pair.container.link_towards(neighbour.parse().unwrap());
        assert_eq!(route.unwrap(), None, "{neighbour}");
    }
    let addresses = pair.container.addresses(link).unwrap();
    assert!(
        addresses
            .iter()
            .all(|it| !it.is_tentative || it.is_link_local)
    );
}
