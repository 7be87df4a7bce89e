//! Leases, last reserved addresses, and all files of the index.

#![no_main]

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use host_local::{Config, EarlierBoot, Holder, Origin, Sandbox, Storage, Store, wanted};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

static DIRECTORY: LazyLock<TempDir> = LazyLock::new(|| {
    let builder = tempfile::Builder::new()
        .prefix("lease-files-")
        .tempdir_in("/dev/shm");
    builder.expect("/dev/shm is there")
});

// Files in sequence: number of a name, length, content.
fuzz_target!(|input: &[u8]| {
    let root = DIRECTORY.path();
    for place in ["pods", ".host-local"] {
        fs::remove_dir_all(root.join(place)).ok();
    }
    let storage = Storage {
        data_dir: root.to_owned(),
        lock_timeout: Duration::from_secs(1),
        reuse_delay: Duration::from_secs(1),
        earlier_boot: EarlierBoot::Release,
    };
    let network = "pods".parse().expect("a name");
    let holder = Holder::parse(b"c1\r\neth0").expect("a holder");
    let address = "10.1.0.9".parse().expect("an address");
    // Creates the directories and a trusted state.
    drop(Store::open(&storage, &network, origin()).expect("opens"));
    write(root, input);
    let store =
        Store::open(&storage, &network, origin()).expect("no content of a file is an error");
    let is_held = |store: &Store| {
        let leases = store.leases_except(&HashSet::new()).expect("are read");
        let mut leases = leases.iter();
        leases.any(|it| it.address == address && it.holder == holder)
    };
    is_held(&store);
    let reserved = store.reserve(address, &holder).expect("can be written");
    let made = reserved.is_some();
    assert!(!made || is_held(&store));
    let request = fuzz::add_request(REQUEST).expect("a request");
    let config = Config::parse(&request.network).expect("a configuration");
    let wanted = wanted(&request, &config.sets).expect("a set");
    let next = store.lease(&wanted[0], &holder).expect("is leased");
    drop(store);
    let store = Store::open(&storage, &network, origin()).expect("opens again");
    let attachment = cni::Attachment {
        network: network.clone(),
        container: holder.container.clone(),
        interface: "eth0".parse().expect("a name"),
    };
    let leases = store.leases_of(&attachment).expect("are read");
    let is_found = |address| leases.iter().any(|it| it.address == address);
    assert!(
        is_found(next.address) && (!made || is_found(address)),
        "a lease is found again"
    );
    store.release(&leases).expect("are released");
    assert!(!is_held(&store));
});

/// An ADD for any address of a range.
const REQUEST: &[u8] = br#"CNI_ARGS=

{"cniVersion":"1.1.0","name":"pods","type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}"#;

fn write(root: &Path, mut input: &[u8]) {
    const NAMES: [&str; 7] = [
        "pods/10.1.0.9",
        "pods/10.1.0.2",
        "pods/last_reserved_ip.0",
        ".host-local/pods/state",
        ".host-local/pods/records/c1:eth0",
        ".host-local/pods/records/c2",
        ".host-local/pods/released",
    ];
    while let [name, length, rest @ ..] = input {
        let (content, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        let path = root.join(NAMES[usize::from(*name) % NAMES.len()]);
        fs::create_dir_all(path.parent().expect("a directory")).ok();
        fs::write(path, content).ok();
        input = rest;
    }
}

fn origin() -> Origin {
    Origin {
        sandbox: Sandbox::at(Path::new("/run/netns/never-was")),
        plugin: "bridge".into(),
        bridge: None,
    }
}
