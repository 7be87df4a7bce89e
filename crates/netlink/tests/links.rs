//! Renaming and states of links on the real kernel; they need root or `unshare -Urnm`.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::Command;
use std::time::Duration;

use netlink::{Carrier, Connection, LinkChange, Monitor, Request, Wait};
use nix::sched::{CloneFlags, unshare};

/// Opens a connection in a new namespace with a veth pair, `parent` and `other`, both down.
fn namespace_with_pair() -> Connection {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    ip("link add parent type veth peer name other");
    Connection::open().unwrap()
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.unwrap().success(), "ip {words}");
}

#[test]
fn link_is_renamed_by_its_index() {
    let host = namespace_with_pair();
    let index = host.link("parent").unwrap().index;
    host.execute([Request::rename_link(index, "eth0")]).unwrap();
    assert_eq!(host.link("eth0").unwrap().index, index);
    assert!(host.link("parent").unwrap_err().is_not_found());
    let taken = host.execute([Request::rename_link(index, "other")]);
    let taken = taken.unwrap_err();
    assert!(taken.is_already_exists(), "{taken}");
    let refused = format!("rename link number {index} to other: ");
    assert!(taken.to_string().starts_with(&refused), "{taken}");
}

#[test]
fn link_is_settled_if_its_parent_has_no_carrier() {
    let host = namespace_with_pair();
    ip("link add link parent name eth0 type macvlan");
    let link = host.link("eth0").unwrap();
    assert!(!link.is_settled(), "is not even set up");
    let link = host.change_link("eth0", &[LinkChange::Up]).unwrap();
    assert!(link.is_settled() && !link.is_operational);
    let parent = host.change_link("parent", &[LinkChange::Up]).unwrap();
    assert_eq!(parent.carrier, Carrier::Off);
    assert!(!parent.is_settled(), "waits for its peer");
    host.change_link("other", &[LinkChange::Up]).unwrap();
    let wait = Wait {
        link: link.index,
        what: "eth0 to come up",
        deadline: Duration::from_secs(5),
    };
    let up = Monitor::new().wait_for_link(&host, &wait, |link| link.is_operational);
    assert!(up.unwrap().is_settled());
}
