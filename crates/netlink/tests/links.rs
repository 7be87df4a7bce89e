//! Tests of new and moved links on the real kernel; they need root or `unshare -Urnm`.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::thread;

use netlink::{
    Connection, LinkChange, LinkKind, MacAddress, MacVlanMode, NewKind, NewLink, Request,
};
use netns::Netns;
use nix::sched::{CloneFlags, unshare};

/// A namespace with the bridge `br0`, and another one.
struct Host {
    connection: Connection,
    bridge: u32,
    sandbox: Netns,
    container: Connection,
}

impl Host {
    /// Moves the test's thread into the first namespace.
    fn new() -> Self {
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            Netns::own().unwrap()
        };
        let sandbox = thread::spawn(make).join().unwrap();
        make();
        let connection = Connection::open().unwrap();
        let bridge = NewLink::of("br0", NewKind::Bridge);
        connection.add_link(&bridge).unwrap();
        Self {
            bridge: connection.link("br0").unwrap().index,
            container: Connection::open_in(&sandbox).unwrap(),
            connection,
            sandbox,
        }
    }
}

#[test]
fn link_is_made_in_another_namespace_below_a_parent_of_this_one() {
    let host = Host::new();
    let mac = MacAddress([2, 0, 0, 0, 0, 3]);
    let link = NewLink {
        parent: Some(host.bridge),
        mac: Some(mac),
        mtu: Some(1300),
        namespace: Some(&host.sandbox),
        ..NewLink::of("net1", NewKind::Macvlan(MacVlanMode::Vepa, Some(1000)))
    };
    host.connection.add_link(&link).unwrap();
    assert_eq!(host.connection.find_link("net1").unwrap(), None);
    let found = host.container.link("net1").unwrap();
    assert_eq!(found.kind, LinkKind::Macvlan(MacVlanMode::Vepa));
    assert_eq!((found.mac, found.mtu), (Some(mac), 1300));
    assert_eq!((found.is_up, found.peer), (false, Some(host.bridge)));
    assert!(found.peer_namespace.is_some());
}

#[test]
fn link_moves_to_another_namespace_with_a_new_name() {
    let host = Host::new();
    let link = NewLink {
        parent: Some(host.bridge),
        ..NewLink::of("mv0", NewKind::Macvlan(MacVlanMode::Bridge, None))
    };
    host.connection.add_link(&link).unwrap();
    let link = host.connection.link("mv0").unwrap();
    let joined = host
        .connection
        .change_link("mv0", &[LinkChange::Master(host.bridge)]);
    assert!(joined.is_err(), "no bridge has a port above itself");
    let there = Request::move_link(link.index, &host.sandbox, "eth0", "mv0");
    host.connection.execute([there]).unwrap();
    assert_eq!(host.connection.find_link("mv0").unwrap(), None);
    let moved = host.container.link("eth0").unwrap();
    assert_eq!((moved.mac, moved.alias), (link.mac, Some("mv0".into())));
}
