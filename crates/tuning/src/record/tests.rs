use std::os::unix::fs::symlink;

use netlink::MacAddress;

use super::*;

fn namespace(inode: u64, cookie: u64) -> Namespace {
    Namespace {
        inode: Some(inode),
        cookie: Some(cookie),
    }
}

fn record() -> Record {
    Record {
        former: Settings {
            mac: Some(MacAddress([2, 0, 0, 0, 0, 1])),
            mtu: Some(1500),
            promisc: Some(false),
            ..Settings::default()
        },
        owner: "cni:pods/c1/eth0".to_owned(),
        namespace: namespace(4_026_532_000, 7),
    }
}

#[test]
fn record_has_the_form_of_the_reference_and_further_keys() {
    let written = serde_json::to_value(record()).unwrap();
    let expected = serde_json::json!({"mac": "02:00:00:00:00:01", "mtu": 1500, "promisc": false,
        "allmulti": null, "txQLen": null, "owner": "cni:pods/c1/eth0", "sandbox": 4_026_532_000_u64, "cookie": 7});
    assert_eq!(written, expected);
    let of_reference =
        "{\n \"mac\": \"02:00:00:00:00:01\",\n \"promisc\": false,\n \"mtu\": 1500\n}";
    let read: Record = serde_json::from_str(of_reference).unwrap();
    assert_eq!(read.former, record().former);
    assert!(read.owner.is_empty() && read.namespace.inode.is_none());
    assert!(record().is_like(&record()) && !record().is_like(&read));
    let of_infiniband = r#"{"mac": "80:00:00:48:fe:80:00:00:00:00:00:00:f4:52:14:03:00:15:7a:51"}"#;
    let read: Record = serde_json::from_str(of_infiniband).unwrap();
    assert!(read.former == Settings::default());
}

#[test]
fn cookie_tells_namespaces_with_one_inode_apart() {
    let is_same = |one: Namespace| one.is_same(&namespace(1, 7));
    let without_cookie = |inode| Namespace {
        cookie: None,
        ..namespace(inode, 0)
    };
    assert_eq!(is_same(namespace(2, 7)), Some(true));
    assert_eq!(is_same(namespace(1, 8)), Some(false));
    assert_eq!(is_same(without_cookie(1)), Some(true));
    assert_eq!(is_same(without_cookie(2)), Some(false));
}

#[test]
fn record_replaces_what_is_in_its_place_and_follows_no_link() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tuning/c1_eth0.json");
    files::remove(&path).unwrap();
    assert_eq!(Record::read(&path).unwrap(), None);
    record().write(&path).unwrap();
    record().write(&path).unwrap();
    assert_eq!(Record::read(&path).unwrap(), Some(record()));
    let target = directory.path().join("target");
    fs::write(&target, "kept").unwrap();
    files::remove(&path).unwrap();
    symlink(&target, &path).unwrap();
    assert_eq!(Record::read(&path).unwrap(), None);
    record().write(&path).unwrap();
    assert_eq!(Record::read(&path).unwrap(), Some(record()));
    files::remove(&path).unwrap();
    symlink(&target, &path).unwrap();
    files::remove(&path).unwrap();
    assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(Record::read(&path).unwrap(), None);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    let too_long = directory.path().join("x".repeat(300));
    assert_eq!(Record::read(&too_long).unwrap(), None);
    files::remove(&too_long).unwrap();
    record().write(&too_long).unwrap_err();
}
