//! host-local: leases across reboots, and in nearly full ranges.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tests::{Host, Invocation, Network};

fn lease(network: &Network<'_>, container: &str) -> String {
    let result = network.call_for("ADD", container).ok();
    result["ips"][0]["address"].as_str().unwrap().to_owned()
}

/// Returns a network with this many addresses, from 10.1.0.2 on.
fn small(host: &Host, addresses: u8) -> Network<'_> {
    let last = format!("10.1.0.{}", addresses + 1);
    host.host_local_in(&json!({"subnet": "10.1.0.0/24", "rangeEnd": last}))
}

fn holders(host: &Host) -> Vec<String> {
    host.leases("pods").into_values().collect()
}

fn status(network: &Network<'_>) -> Invocation {
    network.clone().with("cniVersion", "1.1.0").call("STATUS")
}

fn index(host: &Host) -> PathBuf {
    host.lease_dir().join(".host-local/pods")
}

fn write_lease(host: &Host, address: &str, content: &str) {
    let directory = host.lease_dir().join("pods");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join(address), content).unwrap();
}

#[test]
fn leases_of_an_earlier_boot_are_released() {
    let host = Host::new();
    let network = small(&host, 2);
    host.reboot("a");
    lease(&network, "c1");
    lease(&network, "c2");
    network.call_for("ADD", "c3").error();
    host.reboot("b");
    let outcome = network.call_for("ADD", "c3").run();
    outcome.ok();
    assert!(
        outcome.stderr.contains("release 10.1.0.2: container c1"),
        "{outcome:?}"
    );
    assert_eq!(holders(&host), ["c3\r\neth0"]);
}

#[test]
fn del_and_gc_leave_leases_of_an_earlier_boot_to_the_next_add() {
    let host = Host::new();
    let network = host.host_local();
    host.reboot("before");
    lease(&network, "dead");
    host.reboot("after");
    network.gc(&[&host.sandbox("dead")]).ok();
    network.call_for("DEL", "somebody-else").ok();
    assert_eq!(holders(&host), ["dead\r\neth0"]);
    lease(&network, "new");
    assert_eq!(holders(&host), ["new\r\neth0"]);
}

#[test]
fn leases_of_an_earlier_boot_stay_where_that_is_asked_for() {
    let host = Host::new();
    let network = host.host_local().with("ipam.reclaimOnBoot", false);
    host.reboot("a");
    lease(&network, "c1");
    host.reboot("b");
    lease(&network, "c2");
    assert_eq!(holders(&host), ["c1\r\neth0", "c2\r\neth0"]);
    // The records are still there when the option is set later.
    host.reboot("c");
    lease(&network.with("ipam.reclaimOnBoot", true), "c3");
    assert_eq!(holders(&host), ["c3\r\neth0"]);
}

#[test]
fn leases_that_were_there_before_the_first_run_stay_until_the_next_boot() {
    let host = Host::new();
    let network = host.host_local();
    host.reboot("a");
    lease(&network.by_reference(), "c1");
    host.reboot("b");
    lease(&network, "c2");
    assert_eq!(holders(&host), ["c1\r\neth0", "c2\r\neth0"]);
    host.reboot("c");
    lease(&network, "c3");
    assert_eq!(holders(&host), ["c3\r\neth0"]);
}

#[test]
fn lost_index_releases_nothing() {
    let host = Host::new();
    let network = host.host_local();
    host.reboot("a");
    lease(&network, "c1");
    fs::remove_dir_all(index(&host)).unwrap();
    host.reboot("b");
    lease(&network, "c2");
    assert_eq!(holders(&host), ["c1\r\neth0", "c2\r\neth0"]);
}

#[test]
fn lease_that_the_reference_recreated_differs_from_the_record() {
    let host = Host::new();
    let network = small(&host, 2);
    let reference = network.by_reference();
    host.reboot("a");
    assert_eq!(lease(&network, "c1"), "10.1.0.2/24");
    lease(&reference, "c2");
    host.reboot("b");
    reference.call_for("DEL", "c1").ok();
    assert_eq!(lease(&reference, "c3"), "10.1.0.2/24");
    let refusal = network.call_for("ADD", "c4").error();
    assert!(refusal.mentions("2 of 2"), "{refusal:?}");
    assert_eq!(holders(&host), ["c3\r\neth0", "c2\r\neth0"]);
}

#[test]
fn files_without_holder_are_removed_and_reported() {
    let host = Host::new();
    let network = small(&host, 2);
    for (content, word) in [("", "empty"), ("\0\0\0\0", "names no container")] {
        write_lease(&host, "10.1.0.2", content);
        write_lease(&host, "10.1.0.3", content);
        let outcome = network.call_for("ADD", "c1").run();
        outcome.ok();
        for address in ["10.1.0.2", "10.1.0.3"] {
            let line = outcome.stderr.lines().find(|line| line.contains(address));
            assert!(line.is_some_and(|it| it.contains(word)), "{outcome:?}");
        }
        assert_eq!(holders(&host), ["c1\r\neth0"]);
        network.call_for("DEL", "c1").ok();
    }
}

#[test]
fn released_addresses_cool_down_while_others_are_free() {
    let host = Host::new();
    let network = small(&host, 3).with("ipam.reuseDelay", "1h");
    for container in ["c1", "c2"] {
        lease(&network, container);
        network.call_for("DEL", container).ok();
    }
    assert_eq!(lease(&network, "c3"), "10.1.0.4/24");
    network
        .call_for("ADD", "c4")
        .error()
        .expect(11, &["1 of 3", "2 were released", "1h", "reuseDelay"]);
    assert_eq!(holders(&host), ["c3\r\neth0"]);
    let asking = network
        .clone()
        .with("runtimeConfig", json!({"ips": ["10.1.0.3"]}));
    assert_eq!(lease(&asking, "c4"), "10.1.0.3/24");
    let impatient = network.with("ipam.reuseDelay", "1ms");
    assert_eq!(lease(&impatient, "c5"), "10.1.0.2/24");
}

#[test]
fn address_that_a_failed_add_released_needs_no_cooldown() {
    let host = Host::new();
    let sets = json!([
        [{"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.2"}],
        [{"subnet": "10.2.0.0/24", "rangeEnd": "10.2.0.2"}],
    ]);
    let network = host.host_local().with("ipam.ranges", sets);
    let network = network.with("ipam.reuseDelay", "1h");
    write_lease(&host, "10.2.0.2", "other\r\neth0");
    let refusal = network.call_for("ADD", "c1").error();
    assert!(refusal.mentions("10.2.0.1-10.2.0.2"), "{refusal:?}");
    fs::remove_file(host.lease_dir().join("pods/10.2.0.2")).unwrap();
    assert_eq!(lease(&network, "c1"), "10.1.0.2/24");
}

#[test]
fn status_reports_a_full_set_and_fails_only_if_configured() {
    let host = Host::new();
    let network = small(&host, 2);
    let failing = network.clone().with("ipam.statusWhenFull", "fail");
    lease(&network, "c1");
    let before = status(&failing).run();
    before.ok();
    assert_eq!(before.stderr, "");
    lease(&network, "c2");
    let snapshot = host.snapshot();
    let warning = status(&network).run();
    warning.ok();
    assert!(warning.stderr.contains("10.1.0.1-10.1.0.3"), "{warning:?}");
    status(&failing)
        .error()
        .expect(50, &["10.1.0.1-10.1.0.3", "no free address"]);
    host.snapshot().assert_same_as(&snapshot);
    status(&network.with("ipam.statusWhenFull", "maybe"))
        .error()
        .expect(7, &["statusWhenFull"]);
}

#[test]
fn the_only_free_address_of_a_large_range_is_found() {
    let host = Host::new();
    let network = host.host_local_in(&json!({"subnet": "10.1.0.0/16"}));
    let directory = host.lease_dir().join("pods");
    fs::create_dir_all(&directory).unwrap();
    let free = 0x1234;
    for low in (2..0xffff_u16).filter(|low| *low != free) {
        let [c, d] = low.to_be_bytes();
        fs::write(directory.join(format!("10.1.{c}.{d}")), "other\r\neth0").unwrap();
    }
    fs::write(directory.join("last_reserved_ip.0"), "10.1.18.53").unwrap();
    for container in ["c1", "c2"] {
        assert_eq!(lease(&network, container), "10.1.18.52/16");
        let refusal = network.call_for("ADD", "c3").error();
        assert!(refusal.mentions("65533 of 65533"), "{refusal:?}");
        network.call_for("DEL", container).ok();
    }
}

#[test]
fn leases_scattered_over_a_wide_range_are_stepped_over() {
    let host = Host::new();
    let network = host.host_local_in(&json!({"subnet": "fd00:1::/64"}));
    for last in ["2", "3", "1:2", "ffff:0:0:7"] {
        let address: std::net::Ipv6Addr = format!("fd00:1::{last}").parse().unwrap();
        write_lease(&host, &address.to_string(), "other\r\neth0");
    }
    for (last_reserved, expected) in [
        ("", "fd00:1::4/64"),
        ("fd00:1::1:1", "fd00:1::1:3/64"),
        ("fd00:1::ffff:0:0:6", "fd00:1::ffff:0:0:8/64"),
    ] {
        write_lease(&host, "last_reserved_ip.0", last_reserved);
        assert_eq!(lease(&network, "c1"), expected);
        network.call_for("DEL", "c1").ok();
    }
}

#[test]
fn full_disk_leaves_no_lease_and_del_works_on_it() {
    let host = Host::new();
    host.tmpfs(host.lease_dir(), "size=64k");
    let network = host.host_local();
    lease(&network, "c1");
    fs::write(host.lease_dir().join("ballast"), vec![0; 1 << 20]).unwrap_err();
    let refusal = network.call_for("ADD", "c2").error();
    assert!(refusal.mentions("No space left"), "{refusal:?}");
    assert_eq!(holders(&host), ["c1\r\neth0"]);
    network.call_for("DEL", "c1").ok();
    assert_eq!(holders(&host), [] as [&str; 0]);
}

#[test]
fn status_does_not_count_leases_from_before_the_reboot() {
    let host = Host::new();
    let network = small(&host, 1).with("ipam.statusWhenFull", "fail");
    host.reboot("a");
    lease(&network, "c1");
    status(&network).error().expect(50, &["1 of 1"]);
    host.reboot("b");
    let before = host.snapshot();
    status(&network).ok();
    host.snapshot().assert_same_as(&before);
    lease(&network, "c2");
    status(&network).error().expect(50, &["1 of 1"]);
}

#[test]
fn del_needs_no_room_and_no_directory_where_nothing_is_held() {
    let host = Host::new();
    for inodes in 2..6 {
        host.tmpfs(host.lease_dir(), &format!("nr_inodes={inodes}"));
        let network = host.host_local();
        network.call_for("ADD", "c1").error();
        assert_eq!(holders(&host), [] as [&str; 0]);
        assert_eq!(network.call_for("DEL", "c1").ok(), Value::Null, "{inodes}");
    }
    let file = host.dir().join("file");
    fs::write(&file, "").unwrap();
    let below = file.join("leases");
    let network = host.host_local().with("ipam.dataDir", below.to_str());
    assert_eq!(network.call_for("DEL", "c1").ok(), Value::Null);
}

#[test]
fn del_under_keys_that_add_refuses_releases_all_the_same() {
    let host = Host::new();
    let network = host.host_local();
    for (key, value) in [
        ("ipam.reuseDelay", json!("soon")),
        ("ipam.reclaimOnBoot", json!("yes")),
        ("ipam.lockTimeout", json!(30)),
    ] {
        lease(&network, "c1");
        let odd = network.clone().with(key, value);
        odd.call_for("ADD", "c2").error().expect(7, &[key]);
        let outcome = odd.call_for("DEL", "c1").run();
        outcome.ok();
        assert!(outcome.stderr.contains(key), "{outcome:?}");
        assert_eq!(holders(&host), [] as [&str; 0]);
    }
}

#[test]
fn del_under_an_invalid_key_keeps_leases_of_an_earlier_boot_where_that_is_asked_for() {
    let host = Host::new();
    let network = host.host_local().with("ipam.reclaimOnBoot", false);
    for (number, (key, value)) in [
        ("ipam.lockTimeout", json!("soon")),
        ("ipam.reclaimOnBoot", json!("no")),
    ]
    .into_iter()
    .enumerate()
    {
        host.reboot(&format!("before-{number}"));
        lease(&network, "c1");
        host.reboot(&format!("after-{number}"));
        let odd = network.clone().with(key, value);
        odd.call_for("DEL", "c2").ok();
        assert_eq!(holders(&host), ["c1\r\neth0"], "{key}");
        network.call_for("DEL", "c1").ok();
    }
}

#[test]
fn addresses_cool_down_even_after_a_verb_without_reuse_delay() {
    let host = Host::new();
    let network = small(&host, 1);
    let resting = network.clone().with("ipam.reuseDelay", "1h");
    lease(&resting, "c1");
    resting.call_for("DEL", "c1").ok();
    // The index is outdated now, so the next call rebuilds it.
    write_lease(&host, "10.1.0.77", "other\r\neth0");
    network.call_for("DEL", "c2").ok();
    resting
        .call_for("ADD", "c3")
        .error()
        .expect(11, &["0 of 1"]);
}

#[test]
fn exclusion_of_one_range_counts_for_the_whole_set() {
    let host = Host::new();
    let set = json!([[
        {"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.3", "exclude": ["10.1.0.10"]},
        {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.10"},
    ]]);
    let network = host.host_local().with("ipam.ranges", set);
    for container in ["c1", "c2"] {
        lease(&network, container);
    }
    let refusal = network.call_for("ADD", "c3").error();
    refusal.expect(100, &["2 of 2"]);
}

#[test]
fn leases_may_lie_on_another_file_system_than_the_index() {
    let host = Host::new();
    let elsewhere = host.dir().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    host.tmpfs(&elsewhere, "");
    std::os::unix::fs::symlink(&elsewhere, host.lease_dir().join("pods")).unwrap();
    let network = host.host_local();
    lease(&network, "c1");
    lease(&network, "c2");
    network.call_for("DEL", "c1").ok();
    assert_eq!(holders(&host), ["c2\r\neth0"]);
    let names = fs::read_dir(&elsewhere).unwrap();
    let mut names: Vec<_> = names.map(|it| it.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["10.1.0.3", "last_reserved_ip.0", "lock"]);
}

#[test]
fn what_does_not_belong_into_the_index_does_no_harm() {
    let host = Host::new();
    let network = host.host_local();
    host.reboot("a");
    lease(&network, "c1");
    fs::create_dir(index(&host).join("records/x")).unwrap();
    fs::write(index(&host).join("records/c1:eth0:old"), "?").unwrap();
    host.reboot("b");
    lease(&network, "c2");
    assert_eq!(holders(&host), ["c2\r\neth0"]);
    let records = fs::read_dir(index(&host).join("records")).unwrap();
    assert_eq!(records.count(), 1);
}
