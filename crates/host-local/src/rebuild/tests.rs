use super::*;
use crate::scratch::Scratch;

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
    // The record stays as a proof, in case `reclaimOnBoot` is set later.
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
fn record_is_about_one_file_of_one_holder() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_owned();
    let leases = Directory::new(path.clone(), Scratch(path.clone()));
    std::fs::write(path.join("10.1.0.2"), "c1\r\neth0").unwrap();
    let address = "10.1.0.2".parse().unwrap();
    let identity_now = leases.identity(address).unwrap().unwrap();
    let recorded = |content: &str, identity| {
        let holder = Holder::parse(content.as_bytes()).unwrap();
        let record = Record {
            address,
            identity,
            boot: boot("before"),
        };
        let known = Records::from([(holder, vec![record])]);
        examine(&leases, address, &known).unwrap().unwrap().boot
    };
    assert_eq!(recorded("c1\r\neth0", identity_now), Some(boot("before")));
    assert_eq!(recorded("c1\r\neth0", identity(1)), None);
    assert_eq!(recorded("c2\r\neth0", identity_now), None);
}
