//! Tests with namespaces and sysctls of the real kernel; they need root or `unshare -Urnm`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends at the first surprise"
)]

use std::fs;
use std::path::Path;

use netns::{Error, Netns, Sysctl};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;

/// Returns the namespace of a thread that created one for itself.
fn new_namespace() -> Netns {
    let made = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("run as root or under: unshare -Urnm");
        Netns::open(Path::new("/proc/thread-self/ns/net")).unwrap()
    });
    made.join().unwrap()
}

fn own_inode() -> String {
    fs::read_link("/proc/thread-self/ns/net")
        .unwrap()
        .display()
        .to_string()
}

#[test]
fn work_runs_inside_and_the_caller_stays_outside() {
    let namespace = new_namespace();
    let outside = own_inode();
    let inside = namespace.run(own_inode).unwrap();
    assert_ne!(inside, outside);
    assert_eq!(own_inode(), outside);
    assert_eq!(namespace.run(own_inode).unwrap(), inside, "it stays alive");
    let nested = namespace.run(|| new_namespace().run(own_inode).unwrap());
    assert!(![inside, outside].contains(&nested.unwrap()));
}

#[test]
fn caller_returns_from_work_that_panics() {
    let (namespace, outside) = (new_namespace(), own_inode());
    let panics = || namespace.run(|| panic!("work fails")).unwrap();
    std::panic::catch_unwind(panics).unwrap_err();
    assert_eq!(own_inode(), outside);
    assert!(!netns::is_away());
}

/// The kernel looks a sysctl up in the namespace whose directory is open.
#[test]
fn sysctls_outside_and_inside_are_told_apart() {
    Netns::run_in_new(|| {
        let (namespace, notify) = (new_namespace(), Sysctl::ipv4("lo", "arp_notify"));
        for _ in 0..2 {
            notify.ensure("0").unwrap();
            namespace.run(|| notify.ensure("1")).unwrap().unwrap();
            assert_eq!(notify.read().unwrap(), "0");
            assert_eq!(namespace.run(|| notify.read()).unwrap().unwrap(), "1");
        }
    })
    .unwrap();
}

/// A process of a user namespace may not enter the network namespace that it has from outside.
#[test]
fn work_runs_inside_even_if_the_caller_could_not_return() {
    if std::env::var_os("CANNOT_RETURN").is_some() {
        let (namespace, outside) = (new_namespace(), own_inode());
        assert!(Netns::own().unwrap().run(|| ()).is_err());
        assert_ne!(namespace.run(own_inode).unwrap(), outside);
        assert!(
            !namespace.run(netns::is_away).unwrap(),
            "a thread of its own"
        );
        assert_eq!(own_inode(), outside);
        return;
    }
    let this = std::env::current_exe().unwrap();
    let name = "work_runs_inside_even_if_the_caller_could_not_return";
    let mut unshare = std::process::Command::new("unshare");
    unshare.arg("--user").arg("--map-root-user").arg(this);
    let outcome = unshare
        .args(["--exact", name])
        .env("CANNOT_RETURN", "yes")
        .output()
        .unwrap();
    assert!(outcome.status.success(), "{outcome:?}");
}

#[test]
fn what_is_no_network_namespace_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let pipe = directory.path().join("pipe");
    nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    for path in [&file, &pipe] {
        assert!(
            matches!(Netns::open(path), Err(Error::NotANamespace { .. })),
            "{path:?}"
        );
    }
    let missing = directory.path().join("missing");
    assert!(Netns::open(&missing).unwrap_err().is_not_found());
    let other = Netns::open(Path::new("/proc/self/ns/uts")).unwrap();
    assert!(other.run(|| ()).unwrap_err().is_no_namespace());
}

#[test]
fn sysctl_has_the_value_that_was_asked_for() {
    let namespace = new_namespace();
    let notify = Sysctl::ipv4("lo", "arp_notify");
    let set = |value| notify.ensure(value).and_then(|()| notify.read());
    let values = namespace.run(|| ["1", "1", "0"].map(|value| set(value).unwrap()));
    assert_eq!(values.unwrap(), ["1", "1", "0"]);
}

#[test]
fn missing_sysctl_is_distinguished() {
    let missing = Sysctl::ipv6("no.such", "accept_ra");
    let error = missing.ensure("0").unwrap_err();
    assert!(error.is_not_found());
    assert_eq!(
        error.to_string(),
        "read sysctl net.ipv6.conf.no/such.accept_ra"
    );
    missing.ensure_if_present("0").unwrap();
}
