use std::os::unix::fs::PermissionsExt as _;

use super::*;

struct Fixture {
    root: tempfile::TempDir,
    leases: Directory,
}

fn fixture() -> Fixture {
    let root = tempfile::tempdir().unwrap();
    let [path, scratch] = ["pods", "scratch"].map(|name| root.path().join(name));
    for directory in [&path, &scratch] {
        fs::create_dir(directory).unwrap();
    }
    Fixture {
        leases: Directory::new(path, Scratch(scratch)),
        root,
    }
}

fn lease(address: &str, content: &str) -> Lease {
    Lease {
        address: address.parse().unwrap(),
        holder: Holder::parse(content.as_bytes()).unwrap(),
    }
}

#[test]
fn lease_is_a_file_as_the_reference_writes_it() {
    let Fixture { root, leases } = fixture();
    for address in ["10.1.0.2", "fd00::2"] {
        assert!(leases.create(&lease(address, "c1\r\neth0")).unwrap());
        let path = leases.path.join(address);
        assert_eq!(fs::read(&path).unwrap(), b"c1\r\neth0");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    let last = "10.1.0.2".parse().unwrap();
    leases.set_last_reserved(0, last).unwrap();
    let names = fs::read_dir(&leases.path).unwrap();
    let mut names: Vec<_> = names.map(|it| it.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["10.1.0.2", "fd00::2", "last_reserved_ip.0"]);
    assert_eq!(leases.last_reserved(0), Some(last));
    let aside = fs::read_dir(root.path().join("scratch")).unwrap();
    assert_eq!(aside.count(), 0);
}

#[test]
fn taken_address_keeps_its_holder() {
    let Fixture {
        leases,
        root: _root,
    } = fixture();
    let first = lease("10.1.0.2", "c1\r\neth0");
    leases.create(&first).unwrap();
    assert!(!leases.create(&lease("10.1.0.2", "c2\r\neth0")).unwrap());
    assert_eq!(leases.holder(first.address).unwrap(), Some(first.holder));
}

#[test]
fn file_names_its_holder_or_is_empty_or_garbled() {
    let Fixture {
        leases,
        root: _root,
    } = fixture();
    let address = "10.1.0.2".parse().unwrap();
    assert_eq!(leases.content(address).unwrap(), None);
    for (bytes, expected) in [
        ("", Content::Empty),
        ("\r\n", Content::Empty),
        ("\0", Content::Garbled),
    ] {
        fs::write(leases.path.join("10.1.0.2"), bytes).unwrap();
        assert_eq!(leases.content(address).unwrap(), Some(expected));
        assert_eq!(leases.holder(address).unwrap(), None);
    }
    fs::write(leases.path.join("notes"), "c1").unwrap();
    assert_eq!(leases.addresses().unwrap(), BTreeSet::from([address]));
    assert!(leases.has(address));
}

#[test]
fn lost_or_garbled_last_address_is_none() {
    let Fixture {
        leases,
        root: _root,
    } = fixture();
    assert_eq!(leases.last_reserved(0), None);
    let path = leases.path.join("last_reserved_ip.0");
    for (text, expected) in [("", None), ("x", None), ("10.1.0.7\n", Some("10.1.0.7"))] {
        fs::write(&path, text).unwrap();
        let expected = expected.map(|text| text.parse().unwrap());
        assert_eq!(leases.last_reserved(0), expected, "{text:?}");
    }
}

#[test]
fn changes_by_other_programs_are_noticed_and_own_ones_are_not() {
    let Fixture {
        leases,
        root: _root,
    } = fixture();
    assert_eq!(leases.undisturbed_since(), None);
    leases.watch();
    let first = lease("10.1.0.2", "c1\r\neth0");
    // Repeats the changes, so that the kernel's clock may advance between any two of them.
    for _ in 0..20 {
        leases.create(&first).unwrap();
        leases.content(first.address).unwrap();
        let date = leases.undisturbed_since().unwrap();
        assert!(leases.remove([first.address])[0].is_ok());
        assert_ne!(leases.undisturbed_since(), Some(date));
        let date = leases.undisturbed_since().unwrap();
        assert!(leases.resume_watch(date));
    }
    let others = leases.path.join("10.1.0.3");
    fs::write(&others, "c2\r\neth0").unwrap();
    assert_eq!(leases.undisturbed_since(), None);
    // A change by this plugin does not hide an earlier change by another program.
    leases.create(&first).unwrap();
    assert_eq!(leases.undisturbed_since(), None);
    leases.watch();
    let date = leases.undisturbed_since().unwrap();
    fs::remove_file(&others).unwrap();
    assert!(!leases.resume_watch(date));
}

#[test]
fn later_file_of_the_same_name_has_another_identity() {
    let Fixture {
        leases,
        root: _root,
    } = fixture();
    let first = lease("10.1.0.2", "c1\r\neth0");
    leases.create(&first).unwrap();
    let identity = leases.identity(first.address).unwrap();
    assert_eq!(leases.identity(first.address).unwrap(), identity);
    assert!(leases.remove([first.address])[0].is_ok());
    leases.create(&first).unwrap();
    // The new file may have the same inode. Its change time differs once the kernel's clock
    // advances, which takes a few milliseconds.
    fs::write(leases.path.join("10.1.0.2"), "c1").unwrap();
    let beginning = SystemTime::now();
    while beginning.elapsed().unwrap() < Duration::from_millis(20) {
        std::hint::spin_loop();
    }
    fs::write(leases.path.join("10.1.0.2"), "c2").unwrap();
    assert_ne!(leases.identity(first.address).unwrap(), identity);
}
