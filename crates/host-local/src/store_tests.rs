use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn attachment(container: &str) -> Attachment {
    Attachment {
        network: "pods".parse().unwrap(),
        container: container.parse().unwrap(),
        interface: "eth0".parse().unwrap(),
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn place(data_dir: &Path) -> Place {
    Place {
        data_dir: data_dir.to_owned(),
        lock_timeout: Duration::from_millis(50),
    }
}

fn open(data_dir: &Path) -> Store {
    Store::open(&place(data_dir), &"pods".parse().unwrap()).unwrap()
}

#[test]
fn lease_is_a_file_as_the_reference_writes_it() {
    let data_dir = tempfile::tempdir().unwrap();
    let store = open(data_dir.path());
    for address in ["10.1.0.2", "fd00::2"] {
        assert_eq!(
            store.reserve(ip(address), &attachment("c1")).unwrap(),
            Reservation::Made
        );
        let path = data_dir.path().join("pods").join(address);
        assert_eq!(fs::read(&path).unwrap(), b"c1\r\neth0");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    store.set_last_reserved(0, ip("10.1.0.2")).unwrap();
    let mut names: Vec<_> = fs::read_dir(data_dir.path().join("pods"))
        .unwrap()
        .map(|it| it.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["10.1.0.2", "fd00::2", "last_reserved_ip.0", "lock"]);
    assert_eq!(store.last_reserved(0), Some(ip("10.1.0.2")));
    assert_eq!(
        fs::read_dir(data_dir.path().join(SCRATCH)).unwrap().count(),
        0
    );
}

#[test]
fn taken_address_keeps_its_holder() {
    let data_dir = tempfile::tempdir().unwrap();
    let store = open(data_dir.path());
    let address = ip("10.1.0.2");
    store.reserve(address, &attachment("c1")).unwrap();
    assert_eq!(
        store.reserve(address, &attachment("c2")).unwrap(),
        Reservation::Taken
    );
    assert!(
        store
            .holder(address)
            .unwrap()
            .unwrap()
            .is(&attachment("c1"))
    );
    assert_eq!(
        store.leases_of(&attachment("c2")).unwrap(),
        [] as [IpAddr; 0]
    );
}

#[test]
fn old_entries_count_only_where_there_are_no_own_ones() {
    let data_dir = tempfile::tempdir().unwrap();
    let store = open(data_dir.path());
    fs::write(data_dir.path().join("pods/10.1.0.7"), "c1").unwrap();
    fs::write(data_dir.path().join("pods/notes"), "c1").unwrap();
    assert_eq!(
        store.leases_of(&attachment("c1")).unwrap(),
        [ip("10.1.0.7")]
    );
    store.reserve(ip("10.1.0.2"), &attachment("c1")).unwrap();
    assert_eq!(
        store.leases_of(&attachment("c1")).unwrap(),
        [ip("10.1.0.2")]
    );
}

#[test]
fn releasing_twice_is_no_error_and_a_missing_store_is_not_made() {
    let data_dir = tempfile::tempdir().unwrap();
    let network = "pods".parse().unwrap();
    assert!(
        Store::open_existing(&place(data_dir.path()), &network)
            .unwrap()
            .is_none()
    );
    assert_eq!(fs::read_dir(data_dir.path()).unwrap().count(), 0);
    let store = open(data_dir.path());
    store.reserve(ip("10.1.0.2"), &attachment("c1")).unwrap();
    store.release(ip("10.1.0.2")).unwrap();
    store.release(ip("10.1.0.2")).unwrap();
    assert_eq!(store.leases().unwrap(), []);
}

#[test]
fn what_cannot_be_read_keeps_nobody_from_their_lease() {
    let data_dir = tempfile::tempdir().unwrap();
    let store = open(data_dir.path());
    fs::create_dir(data_dir.path().join("pods/10.1.0.2")).unwrap();
    let taken = store.reserve(ip("10.1.0.2"), &attachment("c1")).unwrap();
    assert_eq!(taken, Reservation::Taken);
    store.reserve(ip("10.1.0.3"), &attachment("c1")).unwrap();
    let leases = store.leases().unwrap();
    let addresses: Vec<_> = leases.into_iter().map(|lease| lease.address).collect();
    assert_eq!(addresses, [ip("10.1.0.3")]);
}

#[test]
fn round_robin_starts_anew_where_the_last_address_is_lost_or_garbled() {
    let data_dir = tempfile::tempdir().unwrap();
    let store = open(data_dir.path());
    assert_eq!(store.last_reserved(0), None);
    let path = data_dir.path().join("pods/last_reserved_ip.0");
    for (text, expected) in [
        ("", None),
        ("x", None),
        ("10.1.0.7\n", Some(ip("10.1.0.7"))),
    ] {
        fs::write(&path, text).unwrap();
        assert_eq!(store.last_reserved(0), expected, "{text:?}");
    }
}

#[test]
fn one_lease_that_cannot_be_removed_does_not_keep_the_others() {
    let data_dir = tempfile::tempdir().unwrap();
    let store = open(data_dir.path());
    for stuck in ["10.1.0.2", "10.1.0.4"] {
        fs::create_dir(data_dir.path().join("pods").join(stuck)).unwrap();
    }
    store.reserve(ip("10.1.0.3"), &attachment("c1")).unwrap();
    let addresses = ["10.1.0.2", "10.1.0.3", "10.1.0.4"].map(ip);
    let error = store.release_all(addresses).unwrap_err().to_string();
    assert!(
        error.contains("10.1.0.2") && error.contains("10.1.0.4"),
        "{error}"
    );
    assert!(!error.contains("10.1.0.3"), "{error}");
    assert_eq!(store.leases().unwrap(), []);
}

#[test]
fn lock_that_somebody_keeps_is_waited_for_no_longer_than_asked() {
    let data_dir = tempfile::tempdir().unwrap();
    let kept = open(data_dir.path());
    let network = "pods".parse().unwrap();
    let error = Store::open(&place(data_dir.path()), &network).unwrap_err();
    let code = error.downcast_ref::<Error>().map(Error::code);
    assert_eq!(code, Some(11), "{error:#}");
    let patient = Place {
        lock_timeout: Duration::from_secs(20),
        ..place(data_dir.path())
    };
    let waiting = thread::spawn(move || Store::open(&patient, &network).map(drop));
    drop(kept);
    waiting.join().unwrap().unwrap();
}
