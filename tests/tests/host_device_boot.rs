//! host-device and reboots: the boot brings each device back, and later verbs leave it as it is then.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tests::{Host, Network, Place as _, Removal, Sandbox};

const RECORD: &str = "/run/cni/host-device/cni:pods:a:eth0";

/// Attaches the sandbox `a` and reboots. The new boot gives the card another MTU and an address more.
/// Whether `/run` is new differs.
fn reboot(host: &Host, is_run_new: bool) -> (Network<'_>, Sandbox) {
    let network = host.nic();
    let a = host.sandbox("a");
    network.add(&a);
    host.end(&a);
    host.reboot("later");
    if is_run_new {
        fs::remove_dir_all("/run/cni").unwrap();
    }
    let network = host.nic();
    host.ip("address add 198.51.100.5/24 dev ens5");
    host.ip("link set ens5 mtu 1300");
    (network, a)
}

#[test]
fn removal_after_a_reboot_leaves_the_device_and_releases_the_address() {
    for (is_run_new, way) in [true, false]
        .into_iter()
        .flat_map(|it| Removal::ALL.map(|way| (it, way)))
    {
        let host = Host::new();
        let (network, a) = reboot(&host, is_run_new);
        let device = host.link("ens5");
        match way {
            Removal::Del => network.on("DEL", &a),
            Removal::DelForgotten => network.on("DEL", &a).without("CNI_NETNS"),
            Removal::Gc => network.gc(&[]),
        }
        .ok();
        assert_eq!(host.link("ens5"), device, "{way:?}");
        assert!(host.leases("pods").is_empty() && !Path::new(RECORD).exists());
        expect_usable(&host, &network);
    }
}

/// Checks that a later pod gets the device, and that the device comes back as it is now.
fn expect_usable(host: &Host, network: &Network<'_>) {
    let before = host.snapshot();
    let b = host.sandbox("b");
    network.add(&b);
    assert!(b.pings("10.1.0.1"));
    network.del(&b);
    host.snapshot().assert_same_as(&before);
}

#[test]
fn first_add_after_a_reboot_needs_no_del_and_a_late_one_harms_nothing() {
    for is_run_new in [true, false] {
        let host = Host::new();
        let (network, a) = reboot(&host, is_run_new);
        let device = host.link("ens5");
        let b = host.sandbox("b");
        let result = network.add(&b);
        network.on("DEL", &a).ok();
        network.check(&b, &result).ok();
        assert!(b.pings("10.1.0.1") && host.leases("pods").len() == 1);
        network.del(&b);
        assert!(host.leases("pods").is_empty());
        let now = host.link("ens5");
        for key in ["mtu", "address", "ifname", "ifalias", "flags"] {
            assert_eq!(now[key], device[key], "{key}");
        }
        let addresses = host.addresses("ens5");
        assert!(
            addresses.contains(&"198.51.100.5/24".to_owned()),
            "{addresses:?}"
        );
    }
}

#[test]
fn record_of_another_boot_is_void() {
    let host = Host::new();
    let network = host.nic();
    let a = host.sandbox("a");
    network.add(&a);
    let text = fs::read_to_string(RECORD).unwrap();
    network.del(&a);
    let mut old: Value = serde_json::from_str(&text).unwrap();
    old["boot"] = "another".into();
    fs::create_dir_all("/run/cni/host-device").unwrap();
    host.ip("address add 198.51.100.5/24 dev ens5");
    host.ip("link set ens5 mtu 1300");
    let before = host.snapshot();
    for text in [old.to_string(), "{".into(), String::new()] {
        fs::write(RECORD, &text).unwrap();
        network.on("DEL", &a).ok();
        host.snapshot().assert_same_as(&before);
        assert!(!Path::new(RECORD).exists());
    }
}
