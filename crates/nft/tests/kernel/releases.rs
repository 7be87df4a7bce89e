//! A table that another release of this suite wrote: its rules differ from the described ones.

use nft::{
    Chain, Connection, Element, Family, Field, Hook, IpVersion, Rule, Set, Table, TargetType, Type,
    Value,
};

use crate::{enter_new_namespace, nft, put};

/// Returns a table with these chains. Each chain has a rule with each of its comments.
fn table(chains: &[(&str, &[&'static str])]) -> Table {
    let rule = |comment: &&'static str| {
        let rule = Rule::new(comment).when_ip(IpVersion::V4);
        rule.when_in(&[Field::Source(IpVersion::V4)], "pods").drop()
    };
    let chains = chains.iter().map(|(name, comments)| {
        let rules = comments.iter().map(rule).collect();
        Chain::filter(*name, Hook::Prerouting, 0, rules)
    });
    Table {
        family: Family::Inet,
        name: "ours",
        sets: vec![Set::new("pods", [Type::Ipv4Address], TargetType::None)],
        chains: chains.collect(),
    }
}

fn former() -> Table {
    table(&[
        ("guard", &["a", "b", "c"]),
        ("other", &["g"]),
        ("gone", &["d"]),
    ])
}

fn present() -> Table {
    table(&[("guard", &["a", "e"]), ("other", &["h"]), ("new", &["f"])])
}

fn pod() -> Element {
    Element::new("pods", &[Value::Address([10, 0, 0, 2].into())], "cni:x/y/z")
}

fn differences(connection: &Connection, table: &Table) -> Vec<String> {
    connection.differences(table, &[pod()]).unwrap()
}

#[test]
fn a_table_of_another_release_is_complete_until_its_rules_change() {
    for (wrote, reads) in [(former(), present()), (present(), former())] {
        let connection = enter_new_namespace();
        put(&connection, &wrote, &[pod()]).unwrap();
        assert_eq!(differences(&connection, &reads), Vec::<String>::new());
        let listed = nft("-a list chain inet ours guard");
        let last = listed.lines().rfind(|it| it.contains('/')).unwrap();
        let (_, handle) = last.rsplit_once(' ').unwrap();
        nft(&format!("delete rule inet ours guard handle {handle}"));
        let changed = "chain guard of nf_tables table ours was changed";
        assert_eq!(differences(&connection, &reads), [changed]);
        put(&connection, &wrote, &[]).unwrap();
        assert_eq!(differences(&connection, &reads), Vec::<String>::new());
        nft("add rule inet ours guard accept");
        assert_eq!(differences(&connection, &reads), [changed]);
    }
}

#[test]
fn an_update_writes_the_rules_of_this_release_and_keeps_the_elements() {
    let connection = enter_new_namespace();
    put(&connection, &former(), &[pod()]).unwrap();
    put(&connection, &present(), &[]).unwrap();
    let rules = nft("list chain inet ours guard");
    assert!(
        rules.contains("\"e [") && !rules.contains("\"b ["),
        "{rules}"
    );
    assert_eq!(connection.elements(&present()).unwrap(), [pod()]);
    nft("delete chain inet ours new");
    let missing = "chain new of nf_tables table ours is missing";
    assert_eq!(differences(&connection, &present()), [missing]);
}

#[test]
fn a_flushed_chain_of_another_release_is_damaged() {
    let connection = enter_new_namespace();
    put(&connection, &former(), &[pod()]).unwrap();
    nft("flush chain inet ours guard");
    let changed = "chain guard of nf_tables table ours was changed";
    assert_eq!(differences(&connection, &present()), [changed]);
}
