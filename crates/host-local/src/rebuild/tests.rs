use super::*;
use crate::Holder;
use crate::scratch::Scratch;

const ADDRESS: [u8; 4] = [10, 1, 0, 2];

fn identity(inode: u64) -> Identity {
    serde_json::from_value(serde_json::json!({"inode": inode, "ctime": [7, 8]})).unwrap()
}

/// Returns a boot with this ID, whose marker has the same text.
fn of(id: &str) -> Boot {
    Boot {
        id: id.into(),
        run: Some(id.into()),
    }
}

fn record(boot: &str, identity: Identity) -> Record {
    Record {
        address: ADDRESS.into(),
        identity,
        boot: of(boot),
        origin: None,
    }
}

/// Returns the findings about a lease file with `content`, whose record names `boot`.
fn findings(content: &str, boot: &str) -> Findings {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_owned();
    let leases = Directory::new(path.clone(), Scratch(path.clone()));
    std::fs::write(path.join("10.1.0.2"), content).unwrap();
    let identity = leases.identity(ADDRESS.into()).unwrap().unwrap();
    let holder = Holder::parse(b"c1\r\neth0").unwrap();
    let known = Records::from([(holder, vec![record(boot, identity)])]);
    judged(&leases, &known, "now")
}

/// Returns the findings in the boot `now`, in which the host has no link of the attachment.
fn judged(leases: &Directory, known: &Records, now: &str) -> Findings {
    let network = "pods".parse().unwrap();
    let check = StaleLeaseCheck::new(&network, of(now), None);
    Findings::of(leases, known, (&of(now), Some(&check))).unwrap()
}

#[test]
fn lease_is_released_only_if_its_record_names_another_boot() {
    for (boot, is_kept) in [("now", true), ("before", false)] {
        let Findings { kept, stale } = findings("c1\r\neth0", boot);
        assert_eq!((!kept.is_empty(), stale.is_empty()), (is_kept, is_kept));
    }
}

#[test]
fn file_without_holder_is_removed_whatever_the_boot() {
    for content in ["", " \n", "../c1"] {
        let findings = findings(content, "now");
        assert!(findings.kept.is_empty());
        assert_eq!(findings.stale.len(), 1, "{findings:?}");
    }
}

/// While `reclaimOnBoot` is false, the record keeps the ID of the earlier boot. So the lease can be
/// released when the key becomes true.
#[test]
fn record_is_about_one_file_of_one_holder() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_owned();
    let leases = Directory::new(path.clone(), Scratch(path.clone()));
    std::fs::write(path.join("10.1.0.2"), "c1\r\neth0").unwrap();
    let identity_now = leases.identity(ADDRESS.into()).unwrap().unwrap();
    let recorded = |content: &str, identity| {
        let holder = Holder::parse(content.as_bytes()).unwrap();
        let known = Records::from([(holder, vec![record("before", identity)])]);
        let all = Findings::of(&leases, &known, (&of("now"), None)).unwrap();
        let kept = all.kept.into_values().flatten();
        let is_stale = !judged(&leases, &known, "now").stale.is_empty();
        (kept.map(|it| it.boot.id).collect::<String>(), is_stale)
    };
    let now = "now".to_owned();
    assert_eq!(
        recorded("c1\r\neth0", identity_now),
        ("before".into(), true)
    );
    assert_eq!(recorded("c1\r\neth0", identity(1)), (now.clone(), false));
    assert_eq!(recorded("c2\r\neth0", identity_now), (now, false));
}
