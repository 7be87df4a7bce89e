//! vrf: what an interface keeps when it moves, also after a killed ADD. Needs a kernel with VRFs:
//! `.ci/run` runs this file in a virtual machine.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use tests::faults::strace;
use tests::interface::Interface;
use tests::{Host, Network, Place as _, Sandbox, eventually};

fn vrf<'h>(interface: &Interface<'h>, name: &str) -> Network<'h> {
    interface.chained("vrf").with("vrfname", name)
}

/// Returns the routes of both families in all tables, without link-local ones.
fn routes(a: &Sandbox) -> Vec<String> {
    let all = ["", "-6 "].map(|family| a.ip(&format!("{family}route show table all")));
    let lines = all.iter().flat_map(|it| it.lines());
    let lines = lines.filter(|it| !it.contains("fe80") && !it.contains("ff00"));
    let mut lines: Vec<_> = lines.map(|it| it.trim_end().to_owned()).collect();
    lines.sort();
    lines
}

/// Runs DEL, and waits until the kernel has added the local routes, which it does in the background.
fn returns(interface: &Interface<'_>, a: &Sandbox, before: &[String]) {
    interface.run("DEL", &vrf(interface, "blue"), a).ok();
    assert!(eventually(|| routes(a) == before), "{:?}", routes(a));
    assert!(!a.has_link("blue"));
}

/// Returns strace(1) with an effect on the plugin's messages to the kernel.
fn under(host: &Host, effect: &str) -> Vec<String> {
    let mut words = strace(&host.dir().join("trace"));
    words.extend(["-e", "trace=sendto", "-e"].map(str::to_owned));
    words.push(format!("inject=sendto:{effect}"));
    words
}

/// The bridge skips duplicate address detection, an operator does not. With this sysctl, the kernel
/// keeps the addresses, and detects again.
#[test]
fn ipv6_addresses_work_when_add_returns() {
    let host = Host::new();
    let a = host.sandbox("a");
    for number in [1, 2] {
        let interface = Interface::new(&host, &a, number);
        let name = &interface.name;
        let keeps = (number - 1).to_string();
        a.set_sysctl(&format!("net/ipv6/conf/{name}/keep_addr_on_down"), &keeps);
        let checked = format!("fd00:{number}::99");
        a.ip(&format!("-6 address add {checked}/64 dev {name}"));
        let tentative = || a.ip(&format!("-6 address show dev {name} tentative"));
        assert!(eventually(|| tentative().is_empty()));
        // From now on, detection would take a minute.
        a.set_sysctl(&format!("net/ipv6/conf/{name}/dad_transmits"), "60");
        interface.run("ADD", &vrf(&interface, "blue"), &a).ok();
        assert_eq!(tentative(), "", "keep_addr_on_down {keeps}");
        assert!(host.pings(&checked) && host.pings(&interface.source(1)));
        let left = a.ip(&format!("-6 address show dev {name} scope link"));
        assert!(left.contains("fe80"), "{left}");
    }
}

#[test]
fn routes_of_sbr_stay_although_they_have_a_source() {
    let host = Host::new();
    let a = host.sandbox("a");
    let interface = Interface::new(&host, &a, 1);
    interface.run("ADD", &interface.chained("sbr"), &a).ok();
    let before = routes(&a);
    let of_sbr = || a.ip("route show table 100") + &a.ip("-6 route show table 101");
    let tables = of_sbr();
    assert!(tables.contains("src 10.1.0.2"), "{tables}");
    interface.run("ADD", &vrf(&interface, "blue"), &a).ok();
    assert_eq!(of_sbr(), tables);
    let local = a.ip("route show table all type local");
    assert!(!local.contains("table 100"), "{local}");
    returns(&interface, &a, &before);
}

#[test]
fn an_add_after_a_killed_one_restores_what_the_interface_had() {
    let host = Host::new();
    let a = host.sandbox("a");
    let interface = Interface::new(&host, &a, 1);
    a.ip("route add 10.9.0.0/16 via 10.1.0.1 mtu 1300");
    a.ip("-6 route add fd00:9::/64 via fd00:1::1 metric 7");
    a.ip("-6 address add fd00:1::99/64 dev net1 nodad");
    let before = routes(&a);
    let network = vrf(&interface, "blue");
    interface.run("ADD", &network, &a).ok();
    let inside = routes(&a);
    returns(&interface, &a, &before);
    for number in (1..).step_by(4) {
        let kill = under(&host, &format!("signal=KILL:when={number}"));
        let call = network.on("ADD", &a).ifname("net1").under(&kill);
        if call.run().status.success() {
            assert!(number > 5, "{number}");
            break;
        }
        interface.run("ADD", &network, &a).ok();
        assert_eq!(routes(&a), inside, "killed at message {number}");
        interface.run("ADD", &network, &a).ok();
        assert_eq!(routes(&a), inside, "the next ADD changes nothing");
        returns(&interface, &a, &before);
    }
}

/// Each DEL of the first interface would delete the VRF, which has no other port yet.
#[test]
fn a_vrf_that_an_add_is_about_to_join_is_not_deleted() {
    let host = Host::new();
    let a = host.sandbox("a");
    let [first, second] = [1, 2].map(|number| Interface::new(&host, &a, number));
    first.run("ADD", &vrf(&first, "blue"), &a).ok();
    let slow = under(&host, "delay_enter=250000");
    let network = vrf(&second, "blue");
    let add = network.on("ADD", &a).ifname("net2").under(&slow);
    thread::scope(|scope| {
        let adding = scope.spawn(|| add.run());
        while !adding.is_finished() {
            first.run("DEL", &vrf(&first, "blue"), &a).ok();
        }
        adding.join().unwrap().ok();
    });
    assert_eq!(a.link("net2")["master"], "blue");
    let inside = a.ip("route show vrf blue");
    assert!(inside.contains("default via 10.2.0.1"), "{inside}");
    second.run("DEL", &network, &a).ok();
    assert!(!a.has_link("blue"));
    let locks = Path::new("/run/cni/lock").read_dir().unwrap();
    assert_eq!(locks.count(), 0, "no lock is left");
}

/// A process in the sandbox makes the kernel's look-up of the addresses fail. A dummy link is
/// operational as soon as it is up.
#[test]
fn del_does_not_wait_for_addresses() {
    let host = Host::new();
    let a = host.sandbox("a");
    let interface = Interface::new(&host, &a, 1);
    a.ip("link add net9 up type dummy");
    a.ip("-6 address add fd00:9::1/64 dev net9 nodad");
    let network = vrf(&interface, "blue");
    network.on("ADD", &a).ifname("net9").ok();
    a.ip("-6 rule add pref 1 lookup local");
    a.ip("-6 rule delete pref 0");
    a.ip("-6 rule add pref 0 unreachable");
    let start = Instant::now();
    network.on("DEL", &a).ifname("net9").ok();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
}
