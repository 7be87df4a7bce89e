//! Policy rules, tables, saved routes and addresses on the real kernel; they need root or `unshare -Urnm`.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::IpAddr;
use std::process::Command;

use netlink::{Connection, IpVersion, Request, SavedAddress, SavedRoute};
use nix::sched::{CloneFlags, unshare};

/// Opens a connection in a new namespace with the links `a` and `b`, which are up.
fn namespace() -> Connection {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    ip("link add name a type veth peer name b");
    for (link, number) in [("a", 1), ("b", 2)] {
        ip(&format!("address add 10.{number}.0.2/24 dev {link}"));
        ip(&format!("address add fd00:{number}::2/64 dev {link} nodad"));
        ip(&format!("link set dev {link} up"));
    }
    Connection::open().unwrap()
}

fn ip(words: &str) -> String {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "ip {words}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn rules_are_added_and_deleted_exactly() {
    let connection = namespace();
    for (source, version) in [("10.1.0.2", IpVersion::V4), ("fd00:1::2", IpVersion::V6)] {
        let source: IpAddr = source.parse().unwrap();
        let add = [Request::add_rule(source, 70_000)];
        connection.execute(&add).unwrap();
        let family = if source.is_ipv4() { "-4" } else { "-6" };
        ip(&format!(
            "{family} rule add from {source} tos 0x10 lookup 70000"
        ));
        let rules = connection.rules().unwrap();
        let of_source = rules.iter().filter(|it| it.from == Some(source.into()));
        let of_source: Vec<_> = of_source.collect();
        assert_eq!(of_source.len(), 2, "{rules:?}");
        let (narrow, plain) = (of_source.first().unwrap(), of_source.last().unwrap());
        assert!(plain.is_by_source_alone && !narrow.is_by_source_alone);
        assert_eq!((plain.table, plain.version), (70_000, version));
        connection
            .execute([Request::delete_rule(
                source.into(),
                plain.table,
                Some(plain.priority),
            )])
            .unwrap();
        let left = ip(&format!("{family} rule"));
        assert!(left.contains("tos 0x10 lookup 70000"), "{left}");
        assert_eq!(left.matches(&source.to_string()).count(), 1, "{left}");
    }
}

#[test]
fn table_is_free_unless_something_uses_it() {
    let connection = namespace();
    ip("route add 10.9.0.0/16 via 10.1.0.1 table 100");
    ip("-6 route add unreachable fd00:9::/64 table 101");
    ip("rule add fwmark 1 lookup 102");
    ip("-6 rule add fwmark 1 lookup 103");
    let free = |first| {
        let rules = connection.rules().unwrap();
        connection.free_tables(first, &rules).unwrap().next()
    };
    assert_eq!(free(100), Some(104));
    assert_eq!(free(253), Some(256));
    ip("rule add lookup 4294967295");
    assert_eq!(free(u32::MAX), None);
}

/// Returns the only route with this destination and table.
fn saved(connection: &Connection, destination: &str, table: u32) -> SavedRoute {
    let mut routes = connection.saved_routes().unwrap();
    routes.retain(|it| it.route.destination.to_string() == destination && it.route.table == table);
    assert_eq!(routes.len(), 1, "{routes:?}");
    routes.remove(0)
}

#[test]
fn saved_route_keeps_its_attributes_in_another_table() {
    let connection = namespace();
    for (family, destination, gateway) in [
        ("-4", "10.9.0.0/16", "10.7.0.1"),
        ("-6", "fd00:9::/64", "fd00:7::1"),
    ] {
        let words = "onlink metric 7 mtu 1300 advmss 900 proto 99";
        ip(&format!(
            "{family} route add {destination} via {gateway} dev a {words}"
        ));
        let route = saved(&connection, destination, 254);
        assert!(!route.is_direct());
        let copy = route.in_table(70_000);
        connection.execute([copy.addition()]).unwrap();
        let again = connection.execute([copy.addition()]).unwrap_err();
        assert!(again.is_already_exists(), "{again}");
        let [main, other] = ["main", "70000"]
            .map(|table| ip(&format!("{family} route show {destination} table {table}")));
        assert_eq!(main, other);
        connection
            .execute([route.removal(link(&connection, "a"))])
            .unwrap();
        assert_eq!(ip(&format!("{family} route show {destination}")), "");
        connection
            .execute([route.restoration(link(&connection, "a"))])
            .unwrap();
        assert_eq!(ip(&format!("{family} route show {destination}")), main);
    }
    ip("-6 route add fd00:8::/64 dev a expires 500");
    let route = saved(&connection, "fd00:8::/64", 254).in_table(100);
    connection.execute([route.addition()]).unwrap();
    let expires = ip("-6 route show table 100");
    assert!(
        expires.contains("expires 49") || expires.contains("expires 500"),
        "{expires}"
    );
}

fn link(connection: &Connection, name: &str) -> u32 {
    connection.link(name).unwrap().index
}

/// Returns the next hops in any order.
fn sorted(route: &str) -> Vec<&str> {
    let mut hops: Vec<_> = route.split("nexthop").map(str::trim).collect();
    hops.sort_unstable();
    hops
}

#[test]
fn next_hops_of_one_link_leave_a_multipath_route_and_return() {
    let connection = namespace();
    let a = link(&connection, "a");
    for (family, destination, hops) in [
        (
            "-4",
            "0.0.0.0/0",
            "nexthop via 10.1.0.1 dev a weight 3 nexthop via 10.2.0.1 dev b",
        ),
        (
            "-6",
            "::/0",
            "nexthop via fd00:1::1 dev a nexthop via fd00:2::1 dev b",
        ),
        (
            "-6",
            "fd00:9::/64",
            "nexthop via fd00:1::1 dev a nexthop via fd00:1::3 dev a",
        ),
    ] {
        ip(&format!("{family} route add {destination} {hops}"));
        let show = |table: &str| ip(&format!("{family} route show {destination} table {table}"));
        let before = show("main");
        let route = saved(&connection, destination, 254);
        assert_eq!(route.through(a + 100), None);
        let part = route.through(a).unwrap();
        connection.execute([part.in_table(100).addition()]).unwrap();
        assert!(show("100").contains("dev a") && !show("100").contains("dev b"));
        connection.execute([route.removal(a)]).unwrap();
        let left = show("main");
        assert_eq!(left.contains("dev b"), before.contains("dev b"), "{left}");
        assert!(!left.contains("dev a"), "{left}");
        connection.execute([route.restoration(a)]).unwrap();
        assert_eq!(sorted(&show("main")), sorted(&before));
    }
}

#[test]
fn next_hop_objects_become_next_hops() {
    let connection = namespace();
    ip("nexthop add id 1 via 10.1.0.1 dev a");
    ip("route add 10.9.0.0/16 nhid 1");
    let a = link(&connection, "a");
    let route = saved(&connection, "10.9.0.0/16", 254);
    connection
        .execute([route.in_table(100).addition()])
        .unwrap();
    assert_eq!(
        ip("route show table 100").trim(),
        "10.9.0.0/16 via 10.1.0.1 dev a"
    );
    connection.execute([route.removal(a)]).unwrap();
    assert_eq!(ip("route show 10.9.0.0/16"), "");
}

/// The addresses have lifetimes, a label, a metric, no route to their subnet, or a peer.
#[test]
fn saved_addresses_are_added_again_with_all_attributes() {
    let connection = namespace();
    // Duplicate address detection lasts longer than this test.
    std::fs::write("/proc/sys/net/ipv6/conf/a/dad_transmits", "100").unwrap();
    for address in [
        "10.8.0.2/24 label a:x valid_lft 3000 preferred_lft 2000",
        "10.7.0.2/24 broadcast 10.7.0.9 noprefixroute",
        "fd00:8::2/64 nodad metric 300 valid_lft 3000 preferred_lft 2000",
        "fd00:8::3 peer fd00:8::4/128 nodad",
        "fd00:8::5/64",
    ] {
        ip(&format!("address add {address} dev a"));
    }
    let show = || ip("address show dev a scope global");
    let without_times = |shown: &str| -> Vec<String> {
        let lines = shown.lines().filter(|it| !it.contains("sec "));
        lines.map(str::to_owned).collect()
    };
    let before = show();
    assert!(before.contains("tentative"), "{before}");
    let link = connection.link("a").unwrap().index;
    let saved = connection.saved_addresses(link).unwrap();
    ip("address flush dev a scope global");
    let additions = saved.iter().filter(|it| !it.address.is_link_local);
    let additions: Vec<_> = additions.map(SavedAddress::addition).collect();
    connection.execute(additions).unwrap();
    let after = show();
    assert_eq!(without_times(&after), without_times(&before));
    assert_eq!(after.matches("sec ").count(), 2, "{after}");
}
