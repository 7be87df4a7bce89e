//! Tests on the real kernel; they need root or `unshare -Urnm`.

use std::process::Command;
use std::time::Instant;

use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::ContainerLink;

/// Runs `ip` with these words in the namespace of the test.
fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.unwrap().success(), "ip {words}");
}

/// Sets up the link `eth0`, whose parent is down, as ADD does. Returns the link after the wait.
fn configure(namespace: &Netns, dad: Dad) -> Link {
    let name = "eth0".parse().unwrap();
    let mut sandbox = Sandbox::open(namespace, &name).unwrap();
    let link = sandbox.find_link().unwrap().unwrap();
    let ip = IpConfig::of("fd00::2/64".parse().unwrap());
    let desired = Container {
        link: ContainerLink::Addressed,
        dad,
        awaits_link_local: true,
        accept_ra: None,
        addressing: Addressing {
            ips: vec![ip],
            routes: Vec::new(),
            gateways: Vec::new(),
            mode: Gateway::None,
        },
    };
    sandbox.configure(&link, &desired).unwrap();
    sandbox.wait_until_ready(&link, &desired).unwrap()
}

/// Configures a link whose parent has no carrier, in a new namespace, and then brings the parent up.
fn is_not_waited_for(dad: Dad) {
    unshare(CloneFlags::CLONE_NEWNET).expect("run as root or under: unshare -Urnm");
    ip("link add parent type veth peer name other");
    ip("link add link parent name eth0 type macvlan");
    let begin = Instant::now();
    let link = configure(&Netns::own().unwrap(), dad);
    assert!(begin.elapsed() < Duration::from_secs(5), "waited");
    assert!(link.is_up && !link.is_operational);
    ip("link set parent up");
    ip("link set other up");
    let host = Connection::open().unwrap();
    let up = wait(&link, "eth0 to come up with its parent");
    let up = Monitor::new().wait_for_link(&host, &up, |link| link.is_operational);
    assert_eq!(up.unwrap().index, link.index);
}

#[test]
fn link_on_a_parent_without_carrier_is_not_waited_for() {
    is_not_waited_for(Dad::Skip);
}

#[test]
fn addresses_of_a_link_without_carrier_are_not_waited_for() {
    is_not_waited_for(Dad::Perform);
}
