//! Sets of counts on the real kernel, read back by nft(8).

use std::net::Ipv4Addr;

use nft::{
    Chain, Change, Connection, Element, Family, Field, Hook, IpVersion, Rule, Set, Table,
    TargetType, Type, Updated, Value,
};

use crate::{enter_new_namespace, nft};

/// Returns a table with a map of ports of single addresses, and a set that counts the addresses of
/// each port.
fn table() -> Table {
    let (address, protocol, port) = (Type::Ipv4Address, Type::Protocol, Type::Port);
    let pod = TargetType::Values(vec![address, port]);
    let lookup = Rule::new("map").when_ip(IpVersion::V4).dnat_by(
        IpVersion::V4,
        &[
            Field::Destination(IpVersion::V4),
            Field::Protocol,
            Field::DestinationPort,
        ],
        "ports",
    );
    Table {
        family: Family::Inet,
        name: "ours",
        sets: vec![
            Set::new("ports", [address, protocol, port], pod),
            Set::new("counts", [protocol, port], TargetType::Count("ports")),
        ],
        chains: vec![Chain::nat(
            "prerouting",
            Hook::Prerouting,
            -90,
            vec![lookup],
        )],
    }
}

fn port(address: u8, number: u16) -> Element {
    let [host, pod] = [
        Ipv4Addr::new(192, 0, 2, address),
        Ipv4Addr::new(10, 0, 0, 2),
    ];
    let key = [
        Value::Address(host.into()),
        Value::Protocol(6),
        Value::Port(number),
    ];
    let to = [Value::Address(pod.into()), Value::Port(80)];
    Element::new("ports", &key, "a").to_values(&to)
}

fn update(connection: &Connection, delete: &[Element], add: &[Element]) -> Updated {
    let change = Change {
        delete: delete.to_vec(),
        add: add.to_vec(),
        ..Change::default()
    };
    connection
        .update(&table(), || Ok::<_, nft::Error>(change.clone()))
        .unwrap()
}

/// Expects the numbers in the set of counts, as nft(8) lists them.
#[track_caller]
fn expect_counts(mut wanted: Vec<&str>) {
    let listed = nft("list map inet ours counts");
    assert!(
        listed.contains("type inet_proto . inet_service : mark"),
        "{listed}"
    );
    let elements = listed.split_once("elements = {").map_or("", |(_, it)| it);
    let elements = elements.split('}').next().unwrap_or_default().split(',');
    let mut found: Vec<_> = elements
        .map(str::trim)
        .filter(|it| !it.is_empty())
        .collect();
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
}

#[test]
fn counts_follow_each_change_and_are_no_elements() {
    let connection = enter_new_namespace();
    let all = [port(1, 80), port(2, 80), port(3, 90)];
    update(&connection, &[], &all);
    expect_counts(vec!["tcp . 80 : 0x00000002", "tcp . 90 : 0x00000001"]);
    assert_eq!(update(&connection, &all, &all), Updated::Nothing);
    update(&connection, &all[..1], &[port(4, 90)]);
    expect_counts(vec!["tcp . 80 : 0x00000001", "tcp . 90 : 0x00000002"]);
    connection.delete_known(&table(), &all).unwrap();
    expect_counts(vec!["tcp . 90 : 0x00000001"]);
    let deleted = connection.delete(&table(), |_| true).unwrap();
    assert_eq!(deleted, [port(4, 90)]);
    expect_counts(vec![]);
}

#[test]
fn counts_that_are_too_low_for_a_change_are_corrected_by_a_list() {
    let connection = enter_new_namespace();
    let all = [port(1, 80), port(2, 80), port(3, 90)];
    for damage in ["flush map inet ours counts", "delete map inet ours counts"] {
        update(&connection, &[], &all);
        nft(damage);
        update(&connection, &all[..1], &[]);
        expect_counts(vec!["tcp . 80 : 0x00000001", "tcp . 90 : 0x00000001"]);
        connection.delete(&table(), |_| true).unwrap();
    }
    nft("add element inet ours counts { tcp . 80 : 0xffffffff }");
    update(&connection, &[], &all);
    nft("flush chain inet ours prerouting");
    assert_eq!(update(&connection, &[], &[]), Updated::Rules);
    expect_counts(vec!["tcp . 80 : 0x00000002", "tcp . 90 : 0x00000001"]);
}

#[test]
fn a_recreated_table_counts_the_elements_that_it_keeps() {
    let connection = enter_new_namespace();
    let all = [port(1, 80), port(2, 80), port(3, 90)];
    update(&connection, &[], &all);
    nft("flush map inet ours counts");
    nft("delete chain inet ours prerouting");
    nft("add chain inet ours prerouting");
    assert_eq!(update(&connection, &all[2..], &[]), Updated::Table);
    expect_counts(vec!["tcp . 80 : 0x00000002"]);
}

/// An update corrects the numbers before its closure reads them.
#[test]
fn wrong_counts_are_corrected_before_anything_is_decided() {
    let connection = enter_new_namespace();
    update(&connection, &[], &[port(1, 80)]);
    nft("flush map inet ours counts");
    nft("flush chain inet ours prerouting");
    let key = [Value::Protocol(6), Value::Port(80)];
    let count = Element::new("counts", &key, "");
    let updated = connection.update(&table(), || {
        assert!(connection.holder(&table(), &count)?.is_some());
        Ok::<_, nft::Error>(Change::default())
    });
    assert_eq!(updated.unwrap(), Updated::Rules);
}
