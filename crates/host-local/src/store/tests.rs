use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::{Boot, Sandbox};

fn attachment(container: &str) -> Attachment {
    Attachment {
        network: "pods".parse().unwrap(),
        container: container.parse().unwrap(),
        interface: "eth0".parse().unwrap(),
    }
}

fn storage(data_dir: &Path) -> Storage {
    Storage {
        data_dir: data_dir.to_owned(),
        lock_timeout: Duration::from_secs(5),
        reuse_delay: Duration::ZERO,
        earlier_boot: EarlierBoot::Release,
    }
}

fn opened(storage: &Storage) -> Store {
    let origin = Origin {
        sandbox: Sandbox::at(Path::new("/never-was")),
        plugin: "bridge".into(),
        bridge: None,
    };
    Store::open(storage, &"pods".parse().unwrap(), origin).unwrap()
}

fn open(data_dir: &Path) -> Store {
    opened(&storage(data_dir))
}

fn lease(address: &str, container: &str) -> Lease {
    Lease {
        address: address.parse().unwrap(),
        holder: Holder::of(&attachment(container)),
    }
}

/// Leases `address` to `container`. Returns `None` if the address already has a file.
fn reserve(store: &Store, address: &str, container: &str) -> Option<Lease> {
    let Lease { address, holder } = lease(address, container);
    store.reserve(address, &holder).unwrap()
}

fn addresses(leases: &[Lease]) -> Vec<String> {
    leases
        .iter()
        .map(|lease| lease.address.to_string())
        .collect()
}

fn held(store: &Store, container: &str) -> Vec<String> {
    addresses(&store.leases_of(&attachment(container)).unwrap())
}

/// Lists all files below `directory`.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| {
        if path.is_dir() {
            files(&path)
        } else {
            vec![path]
        }
    };
    entries.flat_map(below).collect()
}

#[test]
fn lease_is_found_by_its_holder_now_and_by_the_next_process() {
    let data_dir = tempfile::tempdir().unwrap();
    let store = open(data_dir.path());
    for address in ["10.1.0.2", "fd00::2"] {
        let made = reserve(&store, address, "c1");
        assert_eq!(made, Some(lease(address, "c1")));
    }
    reserve(&store, "10.1.0.3", "c2");
    assert_eq!(held(&store, "c1"), ["10.1.0.2", "fd00::2"]);
    drop(store);
    let store = open(data_dir.path());
    assert!(store.files.index.is_trusted());
    assert_eq!(held(&store, "c1"), ["10.1.0.2", "fd00::2"]);
    assert_eq!(held(&store, "c3"), [] as [&str; 0]);
}

#[test]
fn changes_by_other_programs_are_noticed() {
    let data_dir = tempfile::tempdir().unwrap();
    let network = data_dir.path().join("pods");
    let store = open(data_dir.path());
    reserve(&store, "10.1.0.2", "c1");
    drop(store);
    fs::write(network.join("10.1.0.3"), "c2\r\neth0").unwrap();
    assert_eq!(held(&open(data_dir.path()), "c2"), ["10.1.0.3"]);
    fs::remove_file(network.join("10.1.0.2")).unwrap();
    assert_eq!(held(&open(data_dir.path()), "c1"), [] as [&str; 0]);
    fs::remove_file(network.join("10.1.0.3")).unwrap();
    fs::write(network.join("10.1.0.3"), "c1\r\neth0").unwrap();
    let store = open(data_dir.path());
    assert_eq!(held(&store, "c1"), ["10.1.0.3"]);
    assert_eq!(held(&store, "c2"), [] as [&str; 0]);
}

#[test]
fn overwritten_file_prevails_over_the_index() {
    let data_dir = tempfile::tempdir().unwrap();
    let store = open(data_dir.path());
    reserve(&store, "10.1.0.2", "c1");
    drop(store);
    // Overwriting a file does not change the modification time of its directory, so the index stays
    // trusted.
    fs::write(data_dir.path().join("pods/10.1.0.2"), "c2\r\neth0").unwrap();
    let store = open(data_dir.path());
    assert!(store.files.index.is_trusted());
    assert_eq!(held(&store, "c1"), [] as [&str; 0]);
    assert!(!store.files.index.is_trusted());
    assert_eq!(held(&store, "c2"), ["10.1.0.2"]);
}

#[test]
fn lost_or_damaged_index_is_rebuilt() {
    let data_dir = tempfile::tempdir().unwrap();
    let index = data_dir.path().join(".host-local/pods");
    let store = open(data_dir.path());
    reserve(&store, "10.1.0.2", "c1");
    drop(store);
    let damages: [&dyn Fn(); 5] = [
        &|| fs::remove_dir_all(&index).unwrap(),
        &|| fs::remove_dir_all(index.join("records")).unwrap(),
        &|| fs::write(index.join("records/c1:eth0"), "[{").unwrap(),
        &|| fs::write(index.join("records/c1:eth0"), "[]").unwrap(),
        &|| fs::write(index.join("state"), "").unwrap(),
    ];
    for (number, damage) in damages.iter().enumerate() {
        damage();
        if number == 3 {
            fs::remove_file(index.join("state")).unwrap();
        }
        assert_eq!(held(&open(data_dir.path()), "c1"), ["10.1.0.2"], "{number}");
        let store = open(data_dir.path());
        assert!(store.files.index.is_trusted(), "{number}");
        assert_eq!(held(&store, "c1"), ["10.1.0.2"], "{number}");
    }
}

#[test]
fn leases_of_an_earlier_boot_are_released_after_an_invalid_key_is_corrected() {
    let data_dir = tempfile::tempdir().unwrap();
    let store = open(data_dir.path());
    for (address, container) in [("10.1.0.2", "c1"), ("10.1.0.3", "c2")] {
        reserve(&store, address, container);
    }
    drop(store);
    // After a boot, the records name another boot.
    let now = Boot::current().unwrap().id;
    let index = data_dir.path().join(".host-local/pods");
    for record in files(&index.join("records")) {
        let text = fs::read_to_string(&record).unwrap();
        fs::write(record, text.replace(&now, "before")).unwrap();
    }
    fs::remove_file(index.join("state")).unwrap();
    let undecided = Storage {
        earlier_boot: EarlierBoot::Undecided,
        ..storage(data_dir.path())
    };
    for container in ["c1", "c3"] {
        let store = opened(&undecided);
        let leases = store.leases_of(&attachment(container)).unwrap();
        store.release(&leases).unwrap();
        assert_eq!(held(&store, "c2"), ["10.1.0.3"]);
    }
    assert_eq!(held(&open(data_dir.path()), "c2"), [] as [&str; 0]);
}

#[test]
fn store_works_if_its_index_cannot_be_written() {
    let data_dir = tempfile::tempdir().unwrap();
    let store = open(data_dir.path());
    reserve(&store, "10.1.0.2", "c1");
    drop(store);
    let index = data_dir.path().join(".host-local/pods");
    fs::remove_dir_all(&index).unwrap();
    fs::write(&index, "in the way").unwrap();
    let network = "pods".parse().unwrap();
    let storage = storage(data_dir.path());
    let store = Store::open_existing(&storage, &network).unwrap().unwrap();
    assert!(!store.files.index.is_trusted());
    let leases = store.leases_of(&attachment("c1")).unwrap();
    assert_eq!(addresses(&leases), ["10.1.0.2"]);
    store.release(&leases).unwrap();
    assert_eq!(held(&store, "c1"), [] as [&str; 0]);
}

#[test]
fn leases_without_interface_count_only_if_there_are_no_others() {
    let data_dir = tempfile::tempdir().unwrap();
    drop(open(data_dir.path()));
    fs::write(data_dir.path().join("pods/10.1.0.7"), "c1").unwrap();
    fs::write(data_dir.path().join("pods/notes"), "c1").unwrap();
    let store = open(data_dir.path());
    assert_eq!(held(&store, "c1"), ["10.1.0.7"]);
    reserve(&store, "10.1.0.2", "c1");
    assert_eq!(held(&store, "c1"), ["10.1.0.2"]);
}

#[test]
fn leases_of_unlisted_holders_are_returned() {
    let data_dir = tempfile::tempdir().unwrap();
    let store = open(data_dir.path());
    for (address, container) in [("10.1.0.2", "c1"), ("10.1.0.3", "c2"), ("fd00::3", "c2")] {
        reserve(&store, address, container);
    }
    let listed = HashSet::from([Holder::of(&attachment("c1"))]);
    for _ in 0..2 {
        let stale = store.leases_except(&listed).unwrap();
        assert_eq!(addresses(&stale), ["10.1.0.3", "fd00::3"]);
        store.files.index.distrust();
    }
}

#[test]
fn second_release_succeeds_and_leaves_nothing() {
    let data_dir = tempfile::tempdir().unwrap();
    let before = {
        drop(open(data_dir.path()));
        files(data_dir.path())
    };
    let store = open(data_dir.path());
    reserve(&store, "10.1.0.2", "c1");
    for _ in 0..2 {
        store.release(&[lease("10.1.0.2", "c1")]).unwrap();
        assert!(store.files.index.is_trusted());
    }
    assert_eq!(held(&store, "c1"), [] as [&str; 0]);
    drop(store);
    drop(open(data_dir.path()));
    assert_eq!(files(data_dir.path()), before);
}

#[test]
fn missing_store_is_not_created() {
    let data_dir = tempfile::tempdir().unwrap();
    let network = "pods".parse().unwrap();
    let store = Store::open_existing(&storage(data_dir.path()), &network);
    assert!(store.unwrap().is_none());
    assert_eq!(fs::read_dir(data_dir.path()).unwrap().count(), 0);
}

#[test]
fn inspection_changes_nothing() {
    let data_dir = tempfile::tempdir().unwrap();
    fs::create_dir(data_dir.path().join("pods")).unwrap();
    fs::write(data_dir.path().join("pods/lock"), "").unwrap();
    fs::write(data_dir.path().join("pods/10.1.0.2"), "c1\r\neth0").unwrap();
    let before = files(data_dir.path());
    let network = "pods".parse().unwrap();
    let store = Store::inspect(&storage(data_dir.path()), &network);
    assert_eq!(held(&store.unwrap().unwrap(), "c1"), ["10.1.0.2"]);
    assert_eq!(files(data_dir.path()), before);
}

#[test]
fn unreadable_file_does_not_block_other_leases() {
    let data_dir = tempfile::tempdir().unwrap();
    drop(open(data_dir.path()));
    fs::create_dir(data_dir.path().join("pods/10.1.0.2")).unwrap();
    let store = open(data_dir.path());
    assert_eq!(reserve(&store, "10.1.0.2", "c1"), None);
    reserve(&store, "10.1.0.3", "c1");
    assert_eq!(held(&store, "c1"), ["10.1.0.3"]);
}

#[test]
fn lease_that_cannot_be_removed_does_not_block_the_others() {
    let data_dir = tempfile::tempdir().unwrap();
    let store = open(data_dir.path());
    for stuck in ["10.1.0.2", "10.1.0.4"] {
        fs::create_dir(data_dir.path().join("pods").join(stuck)).unwrap();
    }
    reserve(&store, "10.1.0.3", "c1");
    let leases = ["10.1.0.2", "10.1.0.3", "10.1.0.4"].map(|address| lease(address, "c1"));
    let error = store.release(&leases).unwrap_err().to_string();
    assert!(
        error.contains("10.1.0.2") && error.contains("10.1.0.4"),
        "{error}"
    );
    assert!(!error.contains("10.1.0.3"), "{error}");
    assert_eq!(held(&store, "c1"), [] as [&str; 0]);
}
