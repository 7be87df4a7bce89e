//! Tests with maps to values, rules that translate by them, and forgotten connections on the real
//! kernel.

use std::net::Ipv4Addr;

use nft::{
    Chain, Change, Connection, Element, Error, Family, Field, Hook, IpVersion, Operator, Rule, Set,
    SourcePort, Table, TargetType, Type, Value,
};
use nftables::expr::Expression;
use nftables::helper::{DEFAULT_NFT, get_current_ruleset_with_args};
use nftables::schema::{NfListObject, NfObject};
use nftables::stmt::Statement;

use crate::{enter_new_namespace, nft};

const KEY: [Field; 2] = [Field::Protocol, Field::DestinationPort];

fn map(name: &'static str, address: Type) -> Set {
    let target = TargetType::Values(vec![address, Type::Port]);
    Set::new(name, [Type::Protocol, Type::Port], target)
}

fn table() -> Table {
    let network = "10.0.0.0/8".parse().unwrap();
    let local = Rule::new("local").when_to_host().goto("translate");
    let translate = |version, map| {
        Rule::new("map")
            .when_ip(version)
            .dnat_by(version, &KEY, map)
    };
    let conditions = Rule::new("conditions")
        .when_translated()
        .in_network(Field::Destination, Operator::NotEqual, network)
        .when_from(network)
        .unless(Field::InputName, b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0")
        .when(Field::Mark, &42_u32.to_ne_bytes())
        .masquerade(SourcePort::FullyRandom);
    let by_map = vec![
        translate(IpVersion::V4, "ports4"),
        translate(IpVersion::V6, "ports6"),
    ];
    Table {
        family: Family::Inet,
        name: "ours",
        sets: vec![
            map("ports4", Type::Ipv4Address),
            map("ports6", Type::Ipv6Address),
        ],
        chains: vec![
            Chain::nat("prerouting", Hook::Prerouting, -90, vec![local]),
            Chain::regular("translate", by_map),
            Chain::nat("postrouting", Hook::Postrouting, 100, vec![conditions]),
        ],
    }
}

fn port(number: u16, owner: &str) -> Element {
    let to = [
        Value::Address(Ipv4Addr::new(10, 0, 0, 2).into()),
        Value::Port(80),
    ];
    let key = [Value::Protocol(6), Value::Port(number)];
    Element::new("ports4", &key, owner).to_values(&to)
}

fn add(connection: &Connection, elements: &[Element]) -> Result<(), Error> {
    connection.update(&table(), || {
        Ok(Change {
            add: elements.to_vec(),
            ..Change::default()
        })
    })?;
    Ok(())
}

#[test]
fn maps_and_rules_are_what_nft_reads() {
    let connection = enter_new_namespace();
    add(&connection, &[port(8080, "a")]).unwrap();
    let listed = nft("list ruleset");
    for text in [
        "type inet_proto . inet_service : ipv4_addr . inet_service",
        "type inet_proto . inet_service : ipv6_addr . inet_service",
        "elements = { tcp . 8080 comment \"a\" : 10.0.0.2 . 80 }",
        "type nat hook prerouting priority dstnat + 10",
        "fib daddr type local goto translate",
        "dnat ip to meta l4proto . th dport map @ports4",
        "dnat ip6 to meta l4proto . th dport map @ports6",
        "ct status dnat ip daddr != 10.0.0.0/8 ip saddr 10.0.0.0/8 iifname != \"lo\" meta mark 0x0000002a masquerade fully-random",
    ] {
        assert!(listed.contains(text), "{text} is not in {listed}");
    }
}

/// The library `nftables` parses what nft(8) lists.
#[test]
fn rules_translate_by_the_map_of_their_family() {
    let connection = enter_new_namespace();
    add(&connection, &[]).unwrap();
    let words = ["list", "chain", "inet", "ours", "translate"];
    let listed = get_current_ruleset_with_args(DEFAULT_NFT, words).unwrap();
    let rules = listed.objects.iter().filter_map(|object| match object {
        NfObject::ListObject(NfListObject::Rule(rule)) => Some(rule),
        _ => None,
    });
    let translations = rules
        .flat_map(|rule| rule.expr.iter())
        .filter_map(|it| match it {
            Statement::DNAT(Some(nat)) => nat.addr.as_ref(),
            _ => None,
        });
    let maps: Vec<_> = translations
        .map(|address| match address {
            Expression::Named(named) => format!("{named:?}").contains("@ports"),
            _ => false,
        })
        .collect();
    assert_eq!(maps, [true, true]);
}

#[test]
fn a_key_is_found_with_its_owner_and_not_given_to_another() {
    let connection = enter_new_namespace();
    let (table, one) = (table(), port(8080, "a"));
    assert_eq!(connection.holder(&table, &one).unwrap(), None);
    add(&connection, std::slice::from_ref(&one)).unwrap();
    let found = connection.holder(&table, &port(8080, "b")).unwrap();
    assert_eq!(found, Some(one.clone()));
    let error = add(&connection, &[port(8081, "b"), port(8080, "b")]).unwrap_err();
    assert!(error.to_string().contains("file exists"), "{error}");
    assert_eq!(connection.elements(&table).unwrap(), [one]);
}

#[test]
fn known_elements_are_deleted_only_while_they_are_whose_they_were() {
    let connection = enter_new_namespace();
    let (table, known) = (table(), [port(8080, "a"), port(8081, "a"), port(8082, "a")]);
    add(&connection, &[port(8080, "a"), port(8081, "b")]).unwrap();
    let deleted = connection.delete_known(&table, &known).unwrap();
    assert_eq!(deleted, [port(8080, "a")]);
    assert_eq!(connection.elements(&table).unwrap(), [port(8081, "b")]);
}

#[test]
fn what_is_decided_on_outdated_rules_is_decided_again() {
    let connection = enter_new_namespace();
    let mut asked = 0;
    let updated = connection.update::<Error>(&table(), || {
        asked += 1;
        if asked == 1 {
            nft("add table inet theirs");
        }
        let add = vec![port(8080, "a")];
        Ok(Change {
            add,
            ..Change::default()
        })
    });
    updated.unwrap();
    assert_eq!(asked, 2);
}

#[test]
fn dry_run_changes_nothing_and_reports_what_would_be_refused() {
    let connection = enter_new_namespace();
    connection.dry_run(&table()).unwrap();
    assert_eq!(nft("list ruleset"), "");
    let mut impossible = table();
    impossible.chains.truncate(1);
    let error = connection.dry_run(&impossible).unwrap_err();
    assert!(error.to_string().contains("chain prerouting"), "{error}");
    assert_eq!(nft("list ruleset"), "");
}
