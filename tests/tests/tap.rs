//! tap: every key, traffic of a program without privileges, and what is left.

use std::fs;
use std::thread;

use serde_json::{Value, json};
use tests::faults::strace;
use tests::{Host, Machine, Network, Opening, Place as _, Sandbox, eventually, other_user};

fn has_record(sandbox: &Sandbox) -> bool {
    let name = sandbox.name();
    fs::exists(format!("/run/cni/witness/cni:pods:{name}:eth0")).unwrap()
}

/// Returns the network with both families and their default routes.
fn of_both_families(host: &Host) -> Network<'_> {
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    host.single("tap").with("ipam.routes", routes)
}

/// Opens the link once, as a user without privileges.
fn plain(user: u32) -> Opening {
    Opening { user, queues: None }
}

/// Returns what the kernel reports of the link.
fn kind(a: &Sandbox) -> Value {
    a.link("eth0")["linkinfo"].clone()
}

#[test]
fn machine_of_the_owner_has_traffic_of_both_families() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = of_both_families(&host).with("owner", other_user());
    let result = network.add(&a);
    let expected = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "mac": a.mac("eth0"), "sandbox": a.path()}],
        "ips": [
            {"interface": 0, "address": "10.1.0.2/24", "gateway": "10.1.0.1"},
            {"interface": 0, "address": "fd00:1::2/64", "gateway": "fd00:1::1"},
        ],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    });
    assert_eq!(result, expected);
    assert_eq!(a.default_gateways(), ["10.1.0.1", "fd00:1::1"]);
    assert_eq!(
        a.link("eth0")["operstate"],
        "DOWN",
        "no program, no carrier"
    );
    network.check(&a, &result).ok();
    let machine = Machine::start(&host, &a, plain(other_user())).unwrap();
    for address in ["10.1.0.9", "192.0.2.1", "fd00:1::9", "2001:db8::1"] {
        assert!(eventually(|| a.pings(address)), "{address}");
    }
    network.check(&a, &result).ok();
    drop(machine);
    assert!(a.has_link("eth0"), "the link stays");
    let _again = Machine::start(&host, &a, plain(other_user())).unwrap();
    network.del(&a);
    assert!(a.links() == ["lo"] && !has_record(&a));
    assert!(host.leases("pods").is_empty());
    network.del(&a);
}

#[test]
fn other_users_and_groups_cannot_open_the_link() {
    let host = Host::new();
    let (owner, a) = (other_user(), host.sandbox("a"));
    if owner == 0 {
        eprintln!("this user namespace has only one user: what others may open is not shown");
    }
    for (key, number, may) in [
        ("owner", owner, true),
        ("owner", owner + 1, false),
        ("group", owner, true),
        ("group", owner + 1, false),
    ] {
        let network = host.tap().with(key, number);
        if number > owner && owner == 0 {
            continue;
        }
        network.add(&a);
        let opened = Machine::start(&host, &a, plain(owner));
        assert_eq!(
            opened.as_ref().err().map(String::as_str),
            (!may).then_some(REFUSED),
            "{key} {number}"
        );
        drop(opened);
        drop(Machine::of_root(&host, &a));
        network.del(&a);
    }
}

const REFUSED: &str = "attach: Operation not permitted\n";

#[test]
fn multi_queue_link_is_opened_once_for_each_queue() {
    let host = Host::new();
    let a = host.sandbox("a");
    let open = |queues| {
        let user = other_user();
        Machine::start(&host, &a, Opening { user, queues })
    };
    // Keys match in any case.
    let network = host.tap().with("MULTIQUEUE", true);
    let result = network.add(&a);
    assert_eq!(kind(&a)["info_data"]["multi_queue"], true);
    let machine = open(Some(2)).unwrap();
    assert_eq!(kind(&a)["info_data"]["numqueues"], 2);
    assert!(eventually(|| a.pings("10.1.0.9")));
    drop(machine);
    assert_eq!(open(None).unwrap_err(), "attach: Invalid argument\n");
    let other = network.with("MULTIQUEUE", false);
    other
        .check(&a, &result)
        .error()
        .expect(100, &["eth0 is a multi-queue tap, not a tap"]);
    other.del(&a);
    other.add(&a);
    assert_eq!(open(Some(2)).unwrap_err(), "attach: Invalid argument\n");
    assert!(open(None).is_ok());
}

/// The first request makes the link, and the second one sets its owner.
#[test]
fn queue_that_another_program_opened_before_the_link_has_its_owner_fails_add() {
    let host = Host::new();
    let a = host.sandbox("a");
    let mut slow = strace(&host.dir().join("trace"));
    let delay = ["-e", "inject=ioctl:delay_exit=1000000:when=1"];
    slow.extend(delay.map(str::to_owned));
    let network = host.tap().with("multiQueue", true).with("owner", 1);
    let call = network.on("ADD", &a).under(&slow);
    let user = other_user();
    let queues = Some(1);
    let outcome = thread::scope(|scope| {
        let adding = scope.spawn(|| call.run());
        let mut machine = None;
        while machine.is_none() && !adding.is_finished() {
            machine = Machine::start(&host, &a, Opening { user, queues }).ok();
        }
        assert!(machine.is_some(), "the program opens the link");
        adding.join().unwrap()
    });
    outcome
        .error()
        .expect(100, &["has opened eth0", "repeat ADD"]);
    assert!(a.links() == ["lo"] && !has_record(&a));
    assert!(host.leases("pods").is_empty());
    network.add(&a);
}

#[test]
fn link_is_a_port_of_a_bridge_in_the_sandbox() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.tap().without("ipam").with("bridge", "br0");
    let missing = ["bridge", "no link br0 in the sandbox"];
    network.on("ADD", &a).error().expect(7, &missing);
    assert!(a.links() == ["lo"] && !has_record(&a));
    a.ip("link add br0 up type bridge");
    a.ip("address add 10.1.0.1/24 dev br0");
    let result = network.add(&a);
    assert_eq!(a.link("eth0")["master"], "br0");
    assert_eq!(result["ips"], Value::Null);
    let _machine = Machine::start(&host, &a, plain(other_user())).unwrap();
    assert!(eventually(|| a.pings("10.1.0.9")));
    network.check(&a, &result).ok();
    a.ip("link set eth0 nomaster");
    let refused = network.check(&a, &result).error();
    refused.expect(100, &["eth0 is no port of br0"]);
    network.del(&a);
    assert_eq!(a.links(), ["br0", "lo"]);
}

#[test]
fn mac_and_mtu_are_the_asked_ones() {
    let host = Host::new();
    let a = host.sandbox("a");
    let mac = |network: &Network<'_>, args: &str| {
        let result = network.on("ADD", &a).args(args).ok();
        assert_eq!(result["interfaces"][0]["mac"], a.mac("eth0"));
        network.del(&a);
        result["interfaces"][0]["mac"].clone()
    };
    let network = host.tap();
    assert_eq!(mac(&network, ""), mac(&network, ""));
    let configured = network.with("mac", "02:00:00:00:00:07");
    assert_eq!(mac(&configured, ""), "02:00:00:00:00:07");
    let argument = "MAC=02:00:00:00:00:08";
    assert_eq!(mac(&configured, argument), "02:00:00:00:00:08");
    let convention = configured.with("args.cni.mac", "02:00:00:00:00:09");
    assert_eq!(mac(&convention, argument), "02:00:00:00:00:09");
    let runtime = convention.with("runtimeConfig.mac", "02:00:00:00:00:0a");
    assert_eq!(mac(&runtime, argument), "02:00:00:00:00:0a");
    runtime.with("mtu", 1400).add(&a);
    assert_eq!(a.link("eth0")["mtu"], 1400);
}

#[test]
fn keys_are_checked_and_nothing_is_left() {
    let host = Host::new();
    let a = host.sandbox("a");
    for (key, value, (code, words)) in [
        ("mtu", json!(60), (7, ["mtu", "60"])),
        (
            "mtu",
            json!(65_522),
            (100, ["MTU of eth0", "mtu greater than device maximum"]),
        ),
        ("mac", json!("01:00:5e:00:00:01"), (7, ["mac", "unicast"])),
        ("owner", json!(u32::MAX), (7, ["owner", "4294967295"])),
        ("group", json!(-1), (7, ["group", "-1"])),
        ("bridge", json!("a/b"), (7, ["bridge", "a/b"])),
        (
            "selinuxContext",
            json!("u:r:t:s0"),
            (100, ["u:r:t:s0", "has no SELinux"]),
        ),
    ] {
        let network = host.tap().with(key, value);
        network.on("ADD", &a).error().expect(code, &words);
        assert!(a.links() == ["lo"] && !has_record(&a), "{key}");
        assert!(host.leases("pods").is_empty(), "{key}");
    }
    let newest = host.tap().with("cniVersion", "1.1.0");
    newest.call("STATUS").ok();
    let labelled = newest.with("selinuxContext", "u:r:t:s0");
    labelled
        .call("STATUS")
        .error()
        .expect(50, &["has no SELinux"]);
}

#[test]
fn missing_device_file_is_reported_and_nothing_is_left() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.tap().with("cniVersion", "1.1.0");
    host.sh("mount -t tmpfs tmpfs /dev/net");
    let words = ["open /dev/net/tun", "modprobe tun"];
    network.on("ADD", &a).error().expect(100, &words);
    let refused = network.call("STATUS").error();
    refused.expect(50, &[words[0], words[1], "No such file"]);
    host.sh("touch /dev/net/tun && chmod 000 /dev/net/tun");
    let add = network
        .on("ADD", &a)
        .with_capabilities(&["net_admin", "sys_admin"]);
    let words = [
        "open /dev/net/tun; run the plugin as root",
        "Permission denied",
    ];
    add.error().expect(100, &words);
    assert!(a.links() == ["lo"] && !has_record(&a));
    host.sh("umount /dev/net");
    network.add(&a);
}

#[test]
fn check_names_each_difference() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.tap().with("owner", 1).with("group", 2);
    let result = network.add(&a);
    network.check(&a, &result).ok();
    let differs = |network: &Network<'_>, words: &str| {
        network.check(&a, &result).error().expect(100, &[words]);
    };
    let other = network.clone().with("owner", 3);
    differs(
        &other,
        "eth0 is a tap of user 1 of group 2, not a tap of user 3 of group 2",
    );
    a.ip("address del 10.1.0.2/24 dev eth0");
    differs(&network, "lacks address 10.1.0.2/24");
    a.ip("link set eth0 address 02:00:00:00:00:01 down");
    differs(&network, "has MAC 02:00:00:00:00:01");
    differs(&network, "eth0 in the sandbox is down");
    a.ip("link del eth0");
    differs(&network, "eth0 in the sandbox is gone");
    a.ip("tuntap add eth0 mode tun");
    differs(&network, "eth0 in the sandbox is tun");
    network.del(&a);
    assert!(a.has_link("eth0"), "another program's link stays");
}

#[test]
fn second_add_is_refused_and_changes_nothing() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.tap();
    let result = network.add(&a);
    let words = ["attached already by eth0", "DEL it first"];
    network.on("ADD", &a).error().expect(100, &words);
    network.check(&a, &result).ok();
    assert!(has_record(&a));
}

#[test]
fn address_of_a_live_pod_stays_until_gc() {
    let host = Host::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let network = host.tap();
    for pod in [&a, &b, &c] {
        network.add(pod);
    }
    let outcome = network.call("DEL").container("a").ifname("eth0").run();
    outcome.ok();
    assert!(outcome.stderr.contains("its sandbox exists"), "{outcome:?}");
    c.remove();
    network.call("DEL").container("c").ifname("eth0").ok();
    let leased = || host.leases("pods").into_keys().collect::<Vec<_>>();
    assert_eq!(leased(), ["10.1.0.2", "10.1.0.3"]);
    network.gc(&[&b]).ok();
    assert!(!a.has_link("eth0") && !has_record(&a));
    assert!(b.has_link("eth0") && has_record(&b) && !has_record(&c));
    assert_eq!(leased(), ["10.1.0.3"]);
}
