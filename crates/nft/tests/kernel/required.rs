//! Rules in tables of iptables, which iptables reads and rewrites.

use nft::{
    BaseChain, ChainKind, Comparison, Connection, Family, Hook, RequiredChain, RequiredRule,
    RequiredRules, Updated,
};

use crate::{enter_new_namespace, run};

fn required(admin: &str) -> RequiredRules {
    let chain = |name: &str, rules| RequiredChain {
        name: name.to_owned(),
        base: None,
        rules,
    };
    let base = BaseChain {
        kind: ChainKind::Filter,
        hook: Hook::Forward,
        priority: 0,
    };
    RequiredRules {
        family: Family::Ipv4,
        table: "filter",
        comparison: || Comparison::Native,
        chains: vec![
            RequiredChain {
                base: Some(base),
                ..chain("FORWARD", vec![RequiredRule::jump("OURS", "ours")])
            },
            chain(admin, Vec::new()),
            chain(
                "OURS",
                vec![
                    RequiredRule::jump(admin, "theirs"),
                    RequiredRule::accept_marked(0x1000, "marked"),
                ],
            ),
        ],
    }
}

/// Returns the rules as iptables lists them, in order.
fn rules(chain: &str) -> Vec<String> {
    let listed = run(&format!("iptables-nft -S {chain}"));
    let rules = listed.lines().filter_map(|it| it.strip_prefix("-A "));
    rules.map(str::to_owned).collect()
}

const JUMP: &str = "FORWARD -m comment --comment ours -j OURS";

fn ours() -> [String; 2] {
    [
        "OURS -m comment --comment theirs -j ADMIN",
        "OURS -m mark --mark 0x1000/0x1000 -m comment --comment marked -j ACCEPT",
    ]
    .map(str::to_owned)
}

#[track_caller]
fn expect_complete(connection: &Connection) {
    let required = required("ADMIN");
    let none: [&str; 0] = [];
    assert_eq!(connection.missing_required(&required).unwrap(), none);
    assert_eq!(
        connection.ensure_required(&required).unwrap(),
        Updated::Nothing
    );
}

#[test]
fn rules_are_what_iptables_reads_where_nothing_was() {
    let connection = enter_new_namespace();
    let missing = connection.missing_required(&required("ADMIN")).unwrap();
    assert_eq!(missing.len(), 7, "{missing:#?}");
    assert_eq!(
        connection.ensure_required(&required("ADMIN")).unwrap(),
        Updated::Rules
    );
    expect_complete(&connection);
    assert_eq!(rules("FORWARD"), [JUMP]);
    assert_eq!(rules("OURS"), ours());
    assert!(run("iptables-nft -S").contains("-P FORWARD ACCEPT"));
}

#[test]
fn rules_are_found_after_iptables_and_nft_have_saved_and_loaded_them() {
    let connection = enter_new_namespace();
    connection.ensure_required(&required("ADMIN")).unwrap();
    run("iptables-nft-save | iptables-nft-restore");
    expect_complete(&connection);
    run("f=$(mktemp); nft list ruleset > $f; nft flush ruleset; nft -f $f; rm $f");
    expect_complete(&connection);
    // iptables before 1.8.8 writes a rule in this form. The rules before the last one differ from
    // the wanted rule in one condition or in the verdict.
    run("iptables-nft -F OURS; iptables-nft -A OURS -j ADMIN");
    for other in ["0x1000/0x3000", "0x2000/0x2000", "0x1000"] {
        run(&format!(
            "iptables-nft -A OURS -m mark --mark {other} -j ACCEPT"
        ));
    }
    run("iptables-nft -A OURS -m mark ! --mark 0x1000/0x1000 -j ACCEPT");
    run("iptables-nft -A OURS -s 10.0.0.1 -m mark --mark 0x1000/0x1000 -j ACCEPT");
    run("iptables-nft -A OURS -m mark --mark 0x1000/0x1000 -j DROP");
    assert_eq!(
        connection
            .missing_required(&required("ADMIN"))
            .unwrap()
            .len(),
        1
    );
    run("iptables-nft -A OURS -m mark --mark 0x1000/0x1000 -j ACCEPT");
    expect_complete(&connection);
}

/// iptables before 1.8.8 reads only this comparison.
#[test]
fn mark_is_compared_by_a_match_of_iptables_if_wanted() {
    let connection = enter_new_namespace();
    let wanted = RequiredRules {
        comparison: || Comparison::Iptables,
        ..required("ADMIN")
    };
    connection.ensure_required(&wanted).unwrap();
    expect_complete(&connection);
    assert_eq!(rules("OURS"), ours());
    run("iptables-nft-save | iptables-nft-restore");
    expect_complete(&connection);
}

/// iptables before 1.8.8 saves and restores the rule in this form.
#[test]
fn rule_that_lost_its_condition_is_reported_and_deleted() {
    let connection = enter_new_namespace();
    connection.ensure_required(&required("ADMIN")).unwrap();
    let theirs = ["OURS -j ACCEPT", "OURS -m comment --comment x -j ACCEPT"];
    for rule in theirs {
        run(&format!("iptables-nft -A {rule}"));
    }
    expect_complete(&connection);
    run("iptables-nft -I OURS -m comment --comment marked -j ACCEPT");
    let found = connection.missing_required(&required("ADMIN")).unwrap();
    let [open] = found.as_slice() else {
        panic!("{found:#?}")
    };
    assert!(open.contains("OURS") && open.contains("accepts all packets"));
    connection.ensure_required(&required("ADMIN")).unwrap();
    expect_complete(&connection);
    assert_eq!(
        rules("OURS"),
        [&ours()[..], &theirs.map(str::to_owned)].concat()
    );
}

#[test]
fn missing_rules_are_added_beside_those_of_others() {
    let connection = enter_new_namespace();
    run("iptables-nft -P FORWARD DROP");
    run("iptables-nft -A FORWARD -j REJECT");
    connection.ensure_required(&required("ADMIN")).unwrap();
    assert_eq!(rules("FORWARD")[0], JUMP);
    assert!(run("iptables-nft -S").contains("-P FORWARD DROP"));
    run("iptables-nft -A OURS -s 10.0.0.1 -j ACCEPT");
    run("iptables-nft -D OURS -j ADMIN -m comment --comment theirs");
    connection.ensure_required(&required("ADMIN")).unwrap();
    let [admin, accept] = ours();
    assert_eq!(
        rules("OURS"),
        [admin, accept, "OURS -s 10.0.0.1/32 -j ACCEPT".to_owned()]
    );
    run("iptables-nft -F FORWARD");
    connection.ensure_required(&required("ADMIN")).unwrap();
    assert_eq!(rules("FORWARD"), [JUMP]);
}

#[test]
fn each_admin_chain_is_asked_before_anything_is_accepted() {
    let connection = enter_new_namespace();
    for admin in ["ADMIN", "OTHER", "ADMIN"] {
        connection.ensure_required(&required(admin)).unwrap();
    }
    let listed = rules("OURS");
    assert_eq!(listed.len(), 3, "{listed:#?}");
    assert!(listed[2].ends_with("-j ACCEPT"), "{listed:#?}");
    // A jump behind the accepting rule counts as missing, because accepted packets do not reach it.
    run("iptables-nft -F OURS; iptables-nft -A OURS -m mark --mark 0x1000/0x1000 -j ACCEPT");
    run("iptables-nft -A OURS -j ADMIN");
    connection.ensure_required(&required("ADMIN")).unwrap();
    assert!(rules("OURS")[0].ends_with("-j ADMIN"));
    assert_eq!(rules("OURS").len(), 3);
}
