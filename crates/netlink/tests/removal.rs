//! Removal of links by a helper process on the real kernel; needs root or `unshare -Urnm`.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::env;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{self, Command};
use std::thread;

use netlink::{Connection, MacAddress, NewKind, NewLink};
use netns::Netns;
use nix::sched::{CloneFlags, unshare};

/// Moves the calling thread into a new namespace and adds a bridge there. Returns both, and the index
/// of the bridge.
fn namespace_with(bridge: &str, mac: u8) -> (Netns, Connection, u32) {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let connection = Connection::open().unwrap();
    let mac = MacAddress([2, 0, 0, 0, 0, mac]);
    connection
        .add_link(&NewLink {
            mac: Some(mac),
            ..NewLink::of(bridge, NewKind::Bridge)
        })
        .unwrap();
    let index = connection.link(bridge).unwrap().index;
    (Netns::own().unwrap(), connection, index)
}

/// A helper process looks for the index in its own namespace, the host's.
#[test]
fn link_of_another_namespace_is_removed_there() {
    let (_, host, ours) = namespace_with("br0", 1);
    let sandbox = thread::spawn(|| namespace_with("eth0", 2));
    let (namespace, sandbox, theirs) = sandbox.join().unwrap();
    assert_eq!(ours, theirs);
    let namespace = namespace.as_fd().as_raw_fd();
    let executable = env::current_exe().unwrap();
    let built = executable.ancestors().nth(2).unwrap();
    let status = Command::new(built.join("examples/remove"))
        .env(
            "CNI_NETNS",
            format!("/proc/{}/fd/{namespace}", process::id()),
        )
        .status();
    assert!(status.unwrap().success());
    host.link("br0").unwrap();
    assert!(sandbox.link("eth0").unwrap_err().is_not_found());
}
