//! Tests with limits in elements of a set on the real kernel.

use std::fs;
use std::process::Command;

use nft::{
    Chain, Element, Family, Field, Hook, Limit, Rule, Set, Table, TargetType, Type, Updated, Value,
};

use crate::{enter_new_namespace, nft, put};

fn table() -> Table {
    let link = [Field::InputName];
    let to = |network: &str| {
        let rule = Rule::new("to a network");
        rule.when_frame_to(network.parse().unwrap())
    };
    let over = Rule::new("over").when_in(&link, "limits").drop();
    let rules = vec![
        to("10.1.0.0/16").return_to_caller(),
        to("fd00::/8").return_to_caller(),
        to("0.0.0.0/0").return_to_caller(),
        over,
    ];
    Table {
        family: Family::Bridge,
        name: "ours",
        sets: vec![Set::new("limits", [Type::InterfaceName], TargetType::Limit)],
        chains: vec![Chain::filter("prerouting", Hook::Prerouting, -300, rules)],
    }
}

fn limited(rate: u64, owner: &str) -> Element {
    let limit = Limit::new(rate, 128_036).unwrap();
    Element::new("limits", &[Value::InterfaceName("veth0")], owner).limited_to(limit)
}

#[test]
fn limits_are_what_nft_reads_and_loads_again() {
    let connection = enter_new_namespace();
    let (table, element) = (table(), limited(1_375_001, "cni:pods/a/eth0"));
    put(&connection, &table, std::slice::from_ref(&element)).unwrap();
    let listed = nft("list ruleset");
    for text in [
        "\"veth0\" limit rate over 1375001 bytes/second burst 128036 bytes comment \"cni:pods/a/eth0\"",
        "ip daddr 10.1.0.0/16 return",
        "ip6 daddr fd00::/8 return",
        "iifname @limits drop",
    ] {
        assert!(listed.contains(text), "{text} is not in {listed}");
    }
    let directory = tempfile::tempdir().unwrap();
    let saved = directory.path().join("nftables.conf");
    fs::write(&saved, listed).unwrap();
    nft("flush ruleset");
    nft(&format!("-f {}", saved.display()));
    let there = std::slice::from_ref(&element);
    assert_eq!(put(&connection, &table, there).unwrap(), Updated::Nothing);
}

#[test]
fn a_limit_is_compared_with_the_one_that_is_there() {
    let connection = enter_new_namespace();
    let (table, slow, fast) = (table(), limited(1000, "a"), limited(2000, "a"));
    let differences = |wanted: &Element| {
        let wanted = std::slice::from_ref(wanted);
        connection.differences(&table, wanted).unwrap().len()
    };
    put(&connection, &table, std::slice::from_ref(&slow)).unwrap();
    assert_eq!((differences(&slow), differences(&fast)), (0, 1));
    assert_eq!(
        put(&connection, &table, std::slice::from_ref(&fast)).unwrap(),
        Updated::Rules
    );
    assert_eq!((differences(&slow), differences(&fast)), (1, 0));
    nft("flush set bridge ours limits");
    let packets = "{ veth0 limit rate over 2000/second burst 5 packets comment a }";
    let other = Command::new("nft")
        .args(["add", "element", "bridge", "ours", "limits", packets])
        .status();
    assert!(!other.unwrap().success(), "packets are no bytes");
    assert_eq!(differences(&fast), 1);
    assert_eq!(put(&connection, &table, &[fast]).unwrap(), Updated::Rules);
    let deleted = connection.delete(&table, |owner| owner == "a").unwrap();
    assert_eq!(deleted.len(), 1);
    assert_eq!(connection.elements(&table).unwrap(), []);
}

#[test]
fn a_set_that_holds_no_limits_is_made_again() {
    let connection = enter_new_namespace();
    nft("add table bridge ours");
    nft("add set bridge ours limits { type ifname; }");
    let (table, element) = (table(), limited(1000, "a"));
    let wanted = std::slice::from_ref(&element);
    assert_eq!(put(&connection, &table, wanted).unwrap(), Updated::Table);
    assert_eq!(connection.differences(&table, wanted).unwrap().len(), 0);
}
