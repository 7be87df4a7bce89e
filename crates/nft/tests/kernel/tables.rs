//! Tests with tables, sets and elements of the real kernel, read back by nft(8).

use std::fs::File;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::thread;

use nft::{
    Chain, Connection, Element, Family, Field, Hook, IpVersion, Rule, Set, SourcePort, Table,
    TargetType, Type, Updated, Value,
};
use nftables::helper::{DEFAULT_NFT, get_current_ruleset_with_args};
use nftables::schema::{NfListObject, NfObject};

use crate::{enter_new_namespace, nft, put};

/// Returns the chains that nft(8) lists, with their priorities. The library `nftables`, which
/// parses the list, does not know maps to chains, so the tests compare such maps as text.
fn listed_chains() -> Vec<(String, Option<i32>)> {
    let listed = get_current_ruleset_with_args(DEFAULT_NFT, ["list", "chains"]).unwrap();
    let chains = listed.objects.iter().filter_map(|object| match object {
        NfObject::ListObject(NfListObject::Chain(chain)) => {
            Some((chain.name.to_string(), chain.prio))
        }
        _ => None,
    });
    chains.collect()
}

fn chain_names() -> Vec<String> {
    let chains = listed_chains().into_iter();
    chains.map(|(name, _)| name).collect()
}

fn table() -> Table {
    let rule = Rule::new("by source")
        .when_ip(IpVersion::V4)
        .goto_by(&[Field::Source(IpVersion::V4)], "pods");
    Table {
        family: Family::Inet,
        name: "ours",
        sets: vec![
            Set::new("pods", [Type::Ipv4Address], TargetType::Chain),
            Set::new("ports", [Type::InterfaceName], TargetType::None),
        ],
        chains: vec![Chain::nat(
            "postrouting",
            Hook::Postrouting,
            100,
            vec![rule],
        )],
    }
}

/// Returns the table of [`table`] with one more chain, to which elements can point.
fn with_chain(name: &str) -> Table {
    let mut table = table();
    let rules = vec![
        Rule::new("stay")
            .when_to("10.0.0.0/8".parse().unwrap())
            .return_to_caller(),
        Rule::new("go").masquerade(SourcePort::FullyRandom),
    ];
    table.chains.push(Chain::regular(name, rules));
    table
}

fn pod(last: u8, owner: &str, chain: &str) -> Element {
    let address = Value::Address([10, 0, 0, last].into());
    Element::new("pods", &[address], owner).to_chain(chain)
}

fn owners(connection: &Connection) -> Vec<String> {
    let elements = connection.elements(&table()).unwrap().into_iter();
    let mut owners: Vec<_> = elements.map(|element| element.owner).collect();
    owners.sort();
    owners
}

#[test]
fn what_is_added_is_what_nft_reads() {
    let connection = enter_new_namespace();
    let port = Element::new("ports", &[Value::InterfaceName("veth0")], "a");
    let elements = [pod(2, "a", "home"), port];
    put(&connection, &with_chain("home"), &elements).unwrap();
    assert_eq!(connection.elements(&table()).unwrap(), elements);
    assert_eq!(
        listed_chains(),
        [("postrouting".into(), Some(100)), ("home".into(), None)]
    );
    let text = nft("list ruleset");
    for line in [
        "elements = { 10.0.0.2 comment \"a\" : goto home }",
        "elements = { \"veth0\" comment \"a\" }",
        "type nat hook postrouting priority srcnat; policy accept;",
        "ip saddr vmap @pods comment \"by source",
        "ip daddr 10.0.0.0/8 return comment \"stay",
        "masquerade fully-random comment \"go",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}

#[test]
fn a_table_that_is_complete_is_left_alone() {
    let connection = enter_new_namespace();
    put(&connection, &table(), &[]).unwrap();
    let before = nft("-a list ruleset");
    put(&connection, &table(), &[]).unwrap();
    assert_eq!(nft("-a list ruleset"), before, "the handles are the same");
    let table = table();
    let differences = connection.differences(&table, &[]).unwrap();
    assert!(differences.is_empty(), "{differences:?}");
}

#[test]
fn what_is_there_already_is_left_alone() {
    let connection = enter_new_namespace();
    let table = with_chain("home");
    let [a, b] = [pod(2, "a", "home"), pod(3, "b", "home")];
    let add = |elements: &[Element]| put(&connection, &table, elements).unwrap();
    assert_eq!(add(&[a.clone(), b.clone()]), Updated::Rules);
    let before = nft("-a list ruleset");
    assert_eq!(add(&[a.clone(), b.clone()]), Updated::Nothing);
    assert_eq!(nft("-a list ruleset"), before);
    connection.delete(&table, |owner| owner == "b").unwrap();
    assert_eq!(add(&[a, b]), Updated::Rules, "one of them is gone");
    assert_eq!(owners(&connection), ["a", "b"]);
}

#[test]
fn changed_rules_are_repaired_and_elements_stay() {
    let connection = enter_new_namespace();
    let table = with_chain("home");
    put(&connection, &table, &[pod(2, "a", "home")]).unwrap();
    let whole = nft("list ruleset");
    for change in [
        "flush chain inet ours postrouting",
        "add rule inet ours home drop",
        "insert rule inet ours postrouting counter",
        "flush table inet ours",
    ] {
        nft(change);
        assert!(
            !connection.differences(&table, &[]).unwrap().is_empty(),
            "{change}"
        );
        put(&connection, &table, &[]).unwrap();
        assert_eq!(nft("list ruleset"), whole, "{change}");
    }
    nft("flush ruleset");
    let differences = connection.differences(&table, &[pod(2, "a", "home")]);
    let differences = differences.unwrap().join("; ");
    for lost in ["chain postrouting", "chain home", "element of a in set"] {
        assert!(differences.contains(lost), "{differences}");
    }
    assert_eq!(connection.elements(&table).unwrap(), []);
}

/// The kernel can change none of these in place: a chain at another hook, a chain of another kind,
/// and a set with other keys. Only for the set, the whole table has to be recreated.
#[test]
fn a_chain_or_table_of_another_shape_is_recreated_with_what_can_be_kept() {
    let connection = enter_new_namespace();
    let table = with_chain("home");
    let port = Element::new("ports", &[Value::InterfaceName("veth0")], "b");
    let elements = [pod(2, "a", "home"), pod(3, "c", "elsewhere"), port];
    for (foreign, recreated, kept) in [
        (
            "add table inet ours; \
             add chain inet ours postrouting { type nat hook prerouting priority 100 ; }",
            Updated::Rules,
            &[][..],
        ),
        (
            "delete chain inet ours postrouting; \
             add chain inet ours postrouting { type filter hook postrouting priority 100 ; }",
            Updated::Rules,
            &["a", "b", "c"],
        ),
        (
            "flush chain inet ours postrouting; delete set inet ours ports; \
             add set inet ours ports { type inet_service ; }; add element inet ours ports { 80 }",
            Updated::Table,
            &["a"],
        ),
    ] {
        nft(foreign);
        let before = nft("list ruleset");
        connection.dry_run(&table).unwrap();
        let differences = connection.differences(&table, &elements).unwrap();
        assert!(differences[0].contains("chain postrouting"), "{foreign}");
        assert_eq!(nft("list ruleset"), before, "nobody asked for a change");
        let updated = put(&connection, &table, &[]).unwrap();
        assert_eq!((updated, owners(&connection)), (recreated, strings(kept)));
        assert_eq!(connection.differences(&table, &[]).unwrap(), strings(&[]));
        let [home, elsewhere, port] = elements.each_ref().map(std::slice::from_ref);
        put(&connection, &table, &[home, port].concat()).unwrap();
        put(&connection, &with_chain("elsewhere"), elsewhere).unwrap();
        assert_eq!(owners(&connection), ["a", "b", "c"]);
    }
}

/// If one element of an owner is lost, its other elements are removed, because the lost element may
/// have restricted what they permit.
#[test]
fn a_recreated_table_keeps_all_elements_of_an_owner_or_none() {
    let connection = enter_new_namespace();
    let port = |name, owner| Element::new("ports", &[Value::InterfaceName(name)], owner);
    let home = [pod(2, "a", "home"), port("veth0", "a")];
    let elsewhere = [pod(3, "c", "elsewhere"), port("veth1", "c")];
    put(&connection, &with_chain("home"), &home).unwrap();
    put(&connection, &with_chain("elsewhere"), &elsewhere).unwrap();
    nft("delete chain inet ours postrouting; add chain inet ours postrouting");
    let updated = put(&connection, &with_chain("home"), &[]).unwrap();
    assert_eq!(updated, Updated::Table);
    assert_eq!(owners(&connection), ["a", "a"]);
}

fn strings(of: &[&str]) -> Vec<String> {
    of.iter().map(|it| (*it).to_owned()).collect()
}

#[test]
fn a_table_that_sleeps_is_woken() {
    let connection = enter_new_namespace();
    put(&connection, &table(), &[]).unwrap();
    let awake = nft("list ruleset");
    nft("add table inet ours { flags dormant ; }");
    let differences = connection.differences(&table(), &[]).unwrap();
    assert_eq!(differences, ["nf_tables table ours is dormant"]);
    assert_eq!(put(&connection, &table(), &[]).unwrap(), Updated::Rules);
    assert_eq!(nft("list ruleset"), awake);
}

/// An administrator may save all rules in a file and load them later.
#[test]
fn a_table_that_nft_saved_and_loaded_is_complete() {
    let connection = enter_new_namespace();
    put(&connection, &with_chain("home"), &[pod(2, "a", "home")]).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(nft("list ruleset").as_bytes()).unwrap();
    nft("flush ruleset");
    nft(&format!("-f {}", file.path().display()));
    let updated = put(&connection, &with_chain("home"), &[pod(2, "a", "home")]);
    assert_eq!(updated.unwrap(), Updated::Nothing);
}

#[test]
fn a_later_owner_replaces_an_earlier_one_which_then_deletes_nothing() {
    let connection = enter_new_namespace();
    let table = with_chain("home");
    put(&connection, &table, &[pod(2, "a", "home")]).unwrap();
    put(&connection, &table, &[pod(2, "b", "home")]).unwrap();
    assert_eq!(owners(&connection), ["b"]);
    let deleted = connection.delete(&table, |owner| owner == "a").unwrap();
    assert_eq!(deleted, []);
    assert_eq!(owners(&connection), ["b"]);
}

#[test]
fn a_chain_goes_with_the_last_element_that_leads_to_it() {
    let connection = enter_new_namespace();
    let of_one = [pod(2, "a", "one"), pod(3, "b", "one")];
    put(&connection, &with_chain("one"), &of_one).unwrap();
    let of_two = [pod(4, "b", "two")];
    put(&connection, &with_chain("two"), &of_two).unwrap();
    assert_eq!(chain_names(), ["postrouting", "one", "two"]);
    let deleted = connection.delete(&table(), |owner| owner == "b").unwrap();
    assert_eq!((deleted.len(), owners(&connection)), (2, vec!["a".into()]));
    assert_eq!(chain_names(), ["postrouting", "one"]);
    connection.delete(&table(), |owner| owner == "a").unwrap();
    assert_eq!(chain_names(), ["postrouting"]);
}

#[test]
fn a_chain_goes_when_no_element_leads_to_it_any_more() {
    let connection = enter_new_namespace();
    let [old, new] = ["old", "new"].map(|chain| [pod(1, "a", chain)]);
    put(&connection, &with_chain("old"), &old).unwrap();
    connection.delete_chains_of(&table(), &old).unwrap();
    assert_eq!(chain_names(), ["postrouting", "old"], "it is needed");
    put(&connection, &with_chain("new"), &new).unwrap();
    for _ in 0..2 {
        connection.delete_chains_of(&table(), &old).unwrap();
        assert_eq!(chain_names(), ["postrouting", "new"]);
    }
    // A caller that does not know which of two elements exists names both.
    put(&connection, &with_chain("old"), &old).unwrap();
    let both = [new, old.clone()].concat();
    assert_eq!(connection.delete_known(&table(), &both).unwrap(), old);
    assert_eq!(chain_names(), ["postrouting"]);
}

#[test]
fn a_refused_transaction_does_nothing_and_names_the_message() {
    let connection = enter_new_namespace();
    let elements = [pod(2, "a", "home"), pod(3, "a", "nowhere")];
    let error = put(&connection, &with_chain("home"), &elements);
    let text = error.unwrap_err().to_string();
    assert!(text.starts_with("add element of a in set pods: "), "{text}");
    assert_eq!(nft("list ruleset"), "");
}

#[test]
fn nothing_is_there_to_be_deleted_where_there_is_no_table() {
    let connection = enter_new_namespace();
    assert_eq!(connection.delete(&table(), |_| true).unwrap(), []);
}

/// All threads change the rules at the same time, and each thread detects conflicts by itself.
#[test]
fn concurrent_changes_of_the_rules_are_kept() {
    let first = enter_new_namespace();
    let own = File::open("/proc/thread-self/ns/net").unwrap();
    thread::scope(|scope| {
        for n in 0..8 {
            let own = &own;
            scope.spawn(move || add_and_delete(own, n));
        }
    });
    assert_eq!(owners(&first).len(), 80);
}

#[expect(
    clippy::disallowed_methods,
    reason = "the crate that wraps it is not used here"
)]
fn add_and_delete(namespace: &File, n: u8) {
    nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    let connection = Connection::open().unwrap();
    for round in 0..20 {
        let owner = format!("{n}-{round}");
        let element = pod(n * 20 + round, &owner, "home");
        put(&connection, &with_chain("home"), &[element]).unwrap();
        if round % 2 == 0 {
            connection.delete(&table(), |it| it == owner).unwrap();
        }
    }
}

#[test]
fn thousands_of_elements_are_deleted() {
    let connection = enter_new_namespace();
    for start in (0..3000).step_by(200) {
        let elements = (start..start + 200).map(|n| {
            let address = Ipv4Addr::from(0x0a00_0000 + n);
            let owner = format!("{:_<200}", n % 2);
            Element::new("pods", &[Value::Address(address.into())], &owner).to_chain("home")
        });
        let elements: Vec<_> = elements.collect();
        put(&connection, &with_chain("home"), &elements).unwrap();
    }
    let deleted = connection.delete(&table(), |owner| owner.starts_with('1'));
    assert_eq!(deleted.unwrap().len(), 1500);
    assert_eq!(owners(&connection).len(), 1500);
}
