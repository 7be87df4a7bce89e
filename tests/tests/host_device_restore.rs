//! host-device: settings, addresses and concurrent verbs when the device comes back, and what ADD says
//! before it leaves.

use std::time::Duration;
use std::{fs, thread};

use nix::unistd::gettid;
use tests::faults::strace;
use tests::{Host, Place as _, Removal, eventually};

#[test]
fn setting_that_cannot_be_restored_is_reported_and_forgotten() {
    let host = Host::new();
    let network = host.nic();
    let bridge = "link add br0 address 02:00:00:00:05:0b type bridge";
    host.ip(bridge);
    host.ip("link set ens5 master br0");
    let before = host.snapshot();
    for (instead, reason) in [
        ("link set lo up", "its master br0 is missing"),
        ("link add br0 type veth peer name br1", "set the master of"),
    ] {
        let a = host.sandbox("a");
        network.add(&a);
        host.ip("link delete br0");
        host.ip(instead);
        let outcome = network.on("DEL", &a).run();
        outcome.ok();
        assert!(outcome.stderr.contains(reason), "{outcome:?}");
        assert!(host.leases("pods").is_empty());
        assert_eq!(host.link("ens5")["mtu"], 1400);
        network.add(&a);
        network.del(&a);
        if host.has_link("br0") {
            host.ip("link delete br0");
        }
        host.ip(bridge);
        host.ip("link set ens5 master br0");
        host.snapshot().assert_same_as(&before);
        a.remove();
    }
    let records = fs::read_dir("/run/cni/host-device").unwrap().count();
    assert_eq!(records, 0);
}

#[test]
fn addresses_come_back_with_their_order_and_attributes() {
    let host = Host::new();
    let network = host.nic();
    for address in [
        "2001:db8:5::10/64 metric 300",
        "2001:db8:5::11/64",
        "192.0.2.10/24 broadcast 192.0.2.99 label ens5:x",
        "10.9.0.1 peer 10.9.0.2/32",
    ] {
        host.ip(&format!("address add {address} dev ens5"));
    }
    let shown = || {
        host.ip("address show dev ens5 scope global")
            .replace(" tentative", "")
    };
    let (before, snapshot) = (shown(), host.snapshot());
    let a = host.sandbox("a");
    network.add(&a);
    network.del(&a);
    let of = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim);
        lines
            .filter(|it| it.starts_with("inet"))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(of(&shown()), of(&before));
    host.snapshot().assert_same_as(&snapshot);
}

#[test]
fn device_of_a_live_attachment_is_spared_by_those_that_had_its_path() {
    let host = Host::new();
    let network = host.nic();
    let a = host.sandbox("a");
    let on = |verb, container| network.on(verb, &a).container(container);
    on("ADD", "former").ok();
    // It comes home without DEL, and another sandbox gets the path.
    a.ip(&format!("link set eth0 down netns {}", gettid()));
    host.ip("link set eth0 name ens5");
    a.renew();
    network.add(&a);
    for container in ["former", "unknown"] {
        on("DEL", container).ok();
        assert!(a.has_link("eth0"), "{container}");
    }
    network.gc(&[&a]).ok();
    assert!(a.has_link("eth0") && host.leases("pods").len() == 1);
    network.del(&a);
    assert!(host.has_link("ens5"));
}

/// The kernel moves no link with an alternative name that the other namespace has.
#[test]
fn alternative_names_of_host_and_sandbox_do_not_hold_the_device() {
    let host = Host::new();
    let network = host.nic();
    host.ip("link property add dev ens5 altname enp0s5 altname rack5 altname eth0");
    host.ip("link property add dev switch altname taken");
    let before = host.snapshot();
    let names = || host.link("ens5")["altnames"].clone();
    for (removal, name) in Removal::ALL.iter().zip(["a", "b", "c"]) {
        let a = host.sandbox(name);
        a.ip("link add rack5 type bridge");
        network.add(&a);
        a.ip("link property del dev eth0 altname enp0s5");
        a.ip("link property add dev eth0 altname switch altname taken altname ens5 altname own");
        // As many as the kernel accepts.
        a.sh("seq -f 'link property add dev eth0 altname a%0120g' 600 | ip -batch - || true");
        match removal {
            Removal::Del => network.del(&a),
            Removal::DelForgotten => drop(network.on("DEL", &a).without("CNI_NETNS").ok()),
            Removal::Gc => drop(network.gc(&[]).ok()),
        }
        let mut names: Vec<String> = serde_json::from_value(names()).unwrap();
        names.sort();
        assert_eq!(names, ["enp0s5", "eth0", "rack5"]);
        host.snapshot().assert_same_as(&before);
        a.remove();
    }
}

/// As with nerdctl, whose paths are those of processes.
#[test]
fn device_comes_back_from_a_sandbox_whose_path_has_ended() {
    let host = Host::new();
    let network = host.nic();
    let before = host.snapshot();
    for removal in ["DEL", "GC"] {
        let a = host.sandbox("a");
        let (first, _other) = (a.inhabitant(), a.inhabitant());
        let call = |verb| network.call(verb).container("a").ifname("eth0");
        call("ADD").netns(first.netns()).ok();
        drop(first);
        if removal == "DEL" {
            call("DEL").ok();
        } else {
            network.gc(&[]).ok();
        }
        host.snapshot().assert_same_as(&before);
        assert!(host.leases("pods").is_empty());
        a.remove();
    }
}

/// Mounts and open files keep a sandbox after its processes, also where the path of ADD leads nowhere.
#[test]
fn device_comes_back_from_a_sandbox_without_processes() {
    let host = Host::new();
    let network = host.nic();
    let before = host.snapshot();
    for (is_mounted, removal) in [(true, "DEL"), (true, "GC"), (false, "DEL"), (false, "GC")] {
        let a = host.sandbox("a");
        let inhabitant = a.inhabitant();
        let call = |verb| network.call(verb).container("a").ifname("eth0");
        call("ADD").netns(inhabitant.netns()).ok();
        drop(inhabitant);
        let file = (!is_mounted).then(|| fs::File::open(a.path()).unwrap());
        if !is_mounted {
            a.remove();
        }
        if removal == "DEL" {
            call("DEL").ok();
        } else {
            network.gc(&[]).ok();
        }
        host.snapshot().assert_same_as(&before);
        assert!(host.leases("pods").is_empty());
        drop(file);
        if is_mounted {
            a.remove();
        }
    }
}

/// Returns a wrapper that delays each request to the kernel.
fn slow(host: &Host) -> Vec<String> {
    let mut words = strace(&host.dir().join("trace"));
    let delay = format!("inject=sendto:delay_enter={}", DELAY.as_micros());
    words.extend(["-e".to_owned(), delay]);
    words
}

const DELAY: Duration = Duration::from_millis(100);

#[test]
fn link_that_gets_the_name_during_del_stays_as_it_is() {
    let host = Host::new();
    let network = host.nic();
    let before = host.snapshot();
    // It has about ten requests.
    for request in 0..12 {
        let a = host.sandbox("a");
        network.add(&a);
        let del = network.on("DEL", &a).under(&slow(&host));
        thread::scope(|scope| {
            scope.spawn(|| del.run());
            let pause = (DELAY * request).as_secs_f32();
            let bridge = "ip link add ens5 address 02:00:00:00:05:0b type bridge";
            host.sh(&format!("sleep {pause}; {bridge} || true"));
        });
        network.del(&a);
        if host.mac("ens5") == "02:00:00:00:05:0b" {
            host.ip("link delete ens5");
        }
        network.gc(&[]).ok();
        host.snapshot().assert_same_as(&before);
        a.remove();
    }
}

#[test]
fn device_that_another_add_takes_during_del_is_left_to_it() {
    let host = Host::new();
    let network = host.nic();
    let before = host.snapshot();
    let a = host.sandbox("a");
    network.add(&a);
    let b = host.sandbox("b");
    let del = network.on("DEL", &a).under(&slow(&host));
    thread::scope(|scope| {
        let del = scope.spawn(|| del.run());
        assert!(eventually(|| network.on("ADD", &b).run().status.success()));
        del.join().unwrap().ok();
    });
    assert_eq!(b.links(), ["eth0", "lo"]);
    network.del(&b);
    host.snapshot().assert_same_as(&before);
}

/// The sandbox has a link with the device's index, so the device gets another one there.
#[test]
fn device_with_a_new_index_comes_back_wherever_add_was_killed() {
    let host = Host::new();
    let network = host.nic();
    let before = host.snapshot();
    for number in 1.. {
        let a = host.sandbox("a");
        let index = &host.link("ens5")["ifindex"];
        a.ip(&format!("link add other index {index} type bridge"));
        let mut kill = strace(&host.dir().join("trace"));
        kill.extend([
            "-e".into(),
            format!("inject=sendto:signal=KILL:when={number}"),
        ]);
        let outcome = network.on("ADD", &a).under(&kill).run();
        network.del(&a);
        host.snapshot().assert_same_as(&before);
        a.remove();
        if outcome.status.success() {
            break;
        }
    }
}

/// Another link has its name, and a link of the host has its index, so the device gets others.
#[test]
fn device_without_its_name_comes_back_wherever_del_was_killed() {
    let host = Host::new();
    let network = host.nic();
    let before = host.snapshot();
    for call in ["sendto", "rename", "unlink"] {
        for number in 1.. {
            let a = host.sandbox("a");
            network.add(&a);
            let index = &a.link("eth0")["ifindex"];
            host.ip(&format!("link add ens5 index {index} type bridge"));
            let mut kill = strace(&host.dir().join("trace"));
            kill.extend([
                "-e".into(),
                format!("inject={call}:signal=KILL:when={number}"),
            ]);
            let outcome = network.on("DEL", &a).under(&kill).run();
            network.del(&a);
            host.ip("link delete ens5");
            network.gc(&[]).ok();
            host.snapshot().assert_same_as(&before);
            a.remove();
            if outcome.status.success() {
                break;
            }
        }
    }
}

#[test]
fn device_below_the_default_route_is_reported() {
    let host = Host::new();
    let network = host.nic();
    host.ip("link add br0 up type bridge");
    host.ip("link set ens5 master br0");
    host.ip("route add default via 192.0.2.1 dev br0 onlink");
    let outcome = network.on("ADD", &host.sandbox("a")).run();
    outcome.ok();
    let note = "the host's default route uses ens5";
    assert!(outcome.stderr.contains(note), "{outcome:?}");
}
