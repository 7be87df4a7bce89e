use super::*;

#[test]
fn backends_of_rules_leave_firewalld_alone() {
    for (keys, asks) in [
        (serde_json::json!({}), true),
        (serde_json::json!({ "backend": "firewalld" }), true),
        (serde_json::json!({ "backend": "iptables" }), false),
        (serde_json::json!({ "backend": "nftables" }), false),
    ] {
        assert_eq!(
            Config::read(&keys).unwrap().asks_firewalld(),
            asks,
            "{keys}"
        );
    }
}

#[test]
fn bit_of_another_program_is_refused_with_its_name() {
    for (bit, words) in [
        (13, "portmap"),
        (14, "kube-proxy"),
        (15, "kube-proxy"),
        (32, "0 to 31"),
    ] {
        let error = Mark::of_bit(bit).unwrap_err().to_string();
        assert!(
            error.starts_with("markBit: ") && error.contains(words),
            "{error}"
        );
    }
    for bit in (0..=31).filter(|bit| !matches!(bit, 13..=15)) {
        assert_eq!(Mark::of_bit(bit).unwrap().bits(), 1 << bit);
    }
    assert_eq!(Mark::DEFAULT.bits(), 0x1000);
}

#[test]
fn admin_chain_is_one_that_iptables_and_nft_read_back() {
    let name = |it: &str| admin_chain(Some(it.to_owned()));
    assert_eq!(admin_chain(None).unwrap(), "CNI-ADMIN");
    assert_eq!(name("").unwrap(), "CNI-ADMIN");
    for good in [
        "ufw-user-forward",
        "_site.1",
        "site",
        "Drop",
        &"a".repeat(28),
    ] {
        assert_eq!(name(good).unwrap(), good);
    }
    for bad in [
        "FORWARD",
        "CNI-FORWARD",
        "DROP",
        "-j",
        "a;b",
        "1admin",
        "{x",
        "drop",
        "accept",
        "xt",
        "destroy",
        "!a",
        "a b",
        "a\n",
        "a\"",
        "ä",
        &"a".repeat(29),
    ] {
        let error = name(bad).unwrap_err().to_string();
        assert!(error.starts_with("iptablesAdminChainName: "), "{error}");
    }
}
