use super::*;

fn boot(name: &str) -> BootId {
    serde_json::from_value(name.into()).unwrap()
}

fn identity(inode: u64) -> Identity {
    serde_json::from_value(serde_json::json!({"inode": inode, "ctime": [7, 8]})).unwrap()
}

fn found(content: &str, boot: Option<BootId>) -> Found {
    let content = match Holder::parse(content.as_bytes()) {
        Some(holder) => Content::Holder(holder),
        None if content.is_empty() => Content::Empty,
        None => Content::Garbled,
    };
    Found {
        content,
        address: "10.1.0.2".parse().unwrap(),
        identity: identity(1),
        boot,
    }
}

fn recorded_boot(verdict: Verdict) -> Option<BootId> {
    match verdict {
        Verdict::Keep(_, record) => Some(record.boot),
        _ => None,
    }
}

#[test]
fn lease_is_released_only_if_its_record_names_another_boot() {
    let now = boot("now");
    let judge = |recorded: Option<&str>, earlier| {
        judge(Some(found("c1\r\neth0", recorded.map(boot))), &now, earlier)
    };
    for (recorded, expected) in [
        (None, Some("now")),
        (Some("now"), Some("now")),
        (Some("before"), None),
    ] {
        let verdict = judge(recorded, EarlierBoot::Release);
        assert_eq!(recorded_boot(verdict), expected.map(boot), "{recorded:?}");
    }
    // The proof is kept, for the day on which it is asked for.
    let kept = judge(Some("before"), EarlierBoot::Keep);
    assert_eq!(recorded_boot(kept), Some(boot("before")));
}

#[test]
fn file_that_names_nobody_is_removed_whatever_the_boot() {
    for content in ["", "\0\0"] {
        let verdict = judge(Some(found(content, None)), &boot("now"), EarlierBoot::Keep);
        assert!(matches!(verdict, Verdict::Release(_)), "{verdict:?}");
    }
    assert_eq!(
        judge(None, &boot("now"), EarlierBoot::Release),
        Verdict::Gone
    );
}

#[test]
fn record_is_about_one_file_and_no_later_one() {
    let holder = Holder::parse(b"c1\r\neth0").unwrap();
    let address = "10.1.0.2".parse().unwrap();
    let record = Record {
        address,
        identity: identity(1),
        boot: boot("before"),
    };
    let records = Records::from([(holder, vec![record])]);
    let known = Known::of(&records);
    assert!(known.0.contains_key(&(address, identity(1))));
    assert!(!known.0.contains_key(&(address, identity(2))));
}
