use super::*;
use crate::lease::Holder;
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

/// Returns the findings about one file, at the boot `now`.
fn findings(found: Found, earlier: EarlierBoot) -> Findings {
    let mut findings = Findings::default();
    findings.add(found, &boot("now"), earlier);
    findings
}

#[test]
fn lease_is_released_only_if_its_record_names_another_boot() {
    let recorded_boot = |recorded: Option<&str>, earlier| {
        let findings = findings(found("c1\r\neth0", recorded.map(boot)), earlier);
        assert_eq!(findings.kept.is_empty(), !findings.stale.is_empty());
        let mut kept = findings.kept.into_values().flatten();
        kept.next().map(|record| record.boot)
    };
    for (recorded, expected) in [
        (None, Some("now")),
        (Some("now"), Some("now")),
        (Some("before"), None),
    ] {
        let kept = recorded_boot(recorded, EarlierBoot::Release);
        assert_eq!(kept, expected.map(boot), "{recorded:?}");
    }
    // The record stays as a proof, in case `reclaimOnBoot` is set later.
    let kept = recorded_boot(Some("before"), EarlierBoot::Keep);
    assert_eq!(kept, Some(boot("before")));
}

#[test]
fn file_without_holder_is_removed_whatever_the_boot() {
    for content in ["", "\0\0"] {
        let findings = findings(found(content, None), EarlierBoot::Keep);
        assert!(findings.kept.is_empty());
        assert_eq!(findings.stale.len(), 1, "{findings:?}");
    }
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
