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
