//! host-local: which leases count as leases of an earlier boot.

use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use serde_json::json;
use tests::{Host, Network, Place as _, Sandbox};

/// The marker of the boot, below /run.
const MARKER: &str = "/run/cni/host-local-boot";

fn holders(host: &Host) -> Vec<String> {
    host.leases("pods").into_values().collect()
}

/// Calls DEL for a container without leases, as the agent does in its own container.
fn del_by_the_agent(network: &Network<'_>) {
    network.call_for("DEL", "other").without("CNI_NETNS").ok();
}

fn remove(sandbox: &Sandbox, host: &Host) {
    let before = host.links().len();
    sandbox.remove();
    assert!(tests::eventually(|| host.links().len() < before));
}

#[test]
fn another_boot_id_alone_releases_no_lease() {
    let host = Host::new();
    let network = host.bridge_v4();
    host.show_boot_id("machine");
    let [a, b, c] = ["a", "b", "c"].map(|it| host.sandbox(it));
    network.add(&a);
    network.add(&b);
    // The container of the agent shows the kernel's boot ID.
    host.show_boot_id("kernel");
    del_by_the_agent(&network);
    assert_eq!(holders(&host), ["a\r\neth0", "b\r\neth0"]);
    host.show_boot_id("machine");
    network.add(&c);
    host.show_boot_id("kernel");
    network.gc(&[&a, &b, &c]).ok();
    network.add(&host.sandbox("d"));
    assert_eq!(host.leases("pods").len(), 4);
    assert!(a.pings("10.1.0.3"));
}

/// An attachment without a link on the host is seen by its sandbox only.
#[test]
fn lease_of_an_existing_sandbox_stays_whatever_the_identifiers_say() {
    let host = Host::new();
    let network = host.host_local();
    host.reboot("a");
    let [dead, live] = ["dead", "live"].map(|it| host.sandbox(it));
    let held = host.sandbox("held");
    let process = held.inhabitant();
    network.add(&dead);
    network.add(&live);
    network.on("ADD", &held).netns(process.netns()).ok();
    dead.remove();
    host.reboot("b");
    network.add(&host.sandbox("new"));
    let expected = ["live\r\neth0", "held\r\neth0", "new\r\neth0"];
    let mut kept = holders(&host);
    kept.sort();
    let mut expected = expected.map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(kept, expected);
}

/// A machine without a battery sets its clock after the first pods. Stepping the dates of all files
/// has the effect of a clock that steps the other way.
#[test]
fn a_clock_that_steps_by_a_day_releases_no_lease() {
    const DAY: Duration = Duration::from_hours(24);
    let host = Host::new();
    let (network, mut pods) = (host.bridge_v4(), vec![host.sandbox("0")]);
    network.add(&pods[0]);
    for date in [SystemTime::now() - DAY, SystemTime::now() + DAY] {
        let index = host.lease_dir().join(".host-local/pods");
        for directory in [host.lease_dir().join("pods"), index.join("records")] {
            for entry in fs::read_dir(directory).unwrap() {
                let file = File::open(entry.unwrap().path()).unwrap();
                file.set_modified(date).unwrap();
            }
        }
        del_by_the_agent(&network);
        pods.push(host.sandbox(&pods.len().to_string()));
        network.add(pods.last().unwrap());
        assert_eq!(host.leases("pods").len(), pods.len());
    }
    network.gc(&pods.iter().collect::<Vec<_>>()).ok();
    assert_eq!(host.leases("pods").len(), pods.len());
}

/// A process keeps the sandbox, whose path is gone, so only the link on the host shows it.
#[test]
fn lease_of_an_existing_link_stays_whatever_the_identifiers_say() {
    let host = Host::new();
    let network = host.bridge_v4();
    host.reboot("a");
    let pod = host.sandbox("a");
    let _process = pod.inhabitant();
    network.add(&pod);
    pod.remove();
    host.reboot("b");
    network.add(&host.sandbox("b"));
    assert_eq!(holders(&host), ["a\r\neth0", "b\r\neth0"]);
}

#[test]
fn sandbox_of_the_same_path_is_another_one() {
    let host = Host::new();
    let network = host.bridge_v4();
    host.reboot("a");
    let pod = host.sandbox("a");
    network.add(&pod);
    remove(&pod, &host);
    host.reboot("b");
    let again = host.sandbox("a");
    network.add(&again);
    assert_eq!(holders(&host), ["a\r\neth0"]);
}

/// A node in a container restarts with the boot ID of the machine, and its /run is empty.
#[test]
fn node_that_restarts_with_the_same_boot_id_releases_leases_of_gone_sandboxes() {
    let host = Host::new();
    let network = host.bridge_v4();
    let [gone, live] = ["gone", "live"].map(|it| host.sandbox(it));
    network.add(&gone);
    network.add(&live);
    remove(&gone, &host);
    fs::remove_file(MARKER).unwrap();
    network.add(&host.sandbox("new"));
    assert_eq!(holders(&host), ["live\r\neth0", "new\r\neth0"]);
}

/// A record has only the boot ID if the marker below /run could not be made.
#[test]
fn record_without_marker_gets_one_and_serves_the_next_reboot() {
    let host = Host::new();
    let network = host.host_local();
    host.show_boot_id("a");
    network.call_for("ADD", "c1").ok();
    let index = host.lease_dir().join(".host-local/pods");
    let file = index.join("records/c1:eth0");
    let mut records: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    for key in ["run", "sandbox", "plugin"] {
        records[0].as_object_mut().unwrap().remove(key).unwrap();
    }
    fs::write(&file, records.to_string()).unwrap();
    host.reboot("b");
    network.call_for("ADD", "c2").ok();
    assert_eq!(holders(&host), ["c1\r\neth0", "c2\r\neth0"]);
    host.reboot("c");
    network.call_for("ADD", "c3").ok();
    assert_eq!(holders(&host), ["c3\r\neth0"]);
}

#[test]
fn container_whose_former_sandbox_is_gone_is_attached_again() {
    let host = Host::new();
    for network in [host.bridge(), host.ptp()] {
        let old = host.sandbox("a");
        network.add(&old);
        remove(&old, &host);
        // The path may be used again.
        let new = host.sandbox("a");
        let add = network.on("ADD", &new).run();
        add.ok();
        let words = "10.1.0.2, fd00:1::2: the former sandbox of container a";
        assert!(add.stderr.contains(words), "{add:?}");
        assert_eq!(host.leases("pods").len(), 2);
        network.del(&new);
        assert_eq!(holders(&host), [] as [&str; 0]);
        new.remove();
        drop(fs::remove_dir_all(host.lease_dir()));
    }
}

/// A process keeps the old sandbox, which still answers at the host's end: tagged by this suite's
/// bridge, untagged by the reference's.
#[test]
fn container_whose_former_sandbox_lives_without_path_is_not_attached_again() {
    let host = Host::new();
    let network = host.bridge_v4();
    let command = "cnitool del pods /run/netns/a --ifname eth0";
    for (former, words) in [
        (host.plugin("bridge"), "is attached already by veth"),
        (host.reference("bridge"), command),
    ] {
        let old = host.sandbox("a");
        let process = old.inhabitant();
        former
            .verb("ADD")
            .config(network.config())
            .sandbox(&old)
            .ok();
        old.remove();
        let new = host.sandbox("a");
        network.on("ADD", &new).error().expect(100, &[words]);
        let address = host.leases("pods").into_keys().next().unwrap();
        assert!(host.pings(&address));
        drop(process);
        network.del(&new);
        new.remove();
    }
}

/// The link of a macvlan exists in its sandbox only, which another path may keep.
#[test]
fn container_that_another_plugin_attached_is_not_attached_again() {
    let host = Host::new();
    let network = host.host_local();
    let config = network.clone().with("type", "macvlan");
    let add = host
        .plugin("host-local")
        .verb("ADD")
        .config(config.config());
    let old = host.sandbox("a");
    add.clone().sandbox(&old).ok();
    old.remove();
    let refusal = add.sandbox(&host.sandbox("a")).error();
    refusal.expect(100, &["holds 10.1.0.2 already", "cnitool del pods"]);
}

/// STATUS must count the leases that the next ADD would release. Otherwise the node stays
/// `NotReady`, and no ADD ever comes.
#[test]
fn status_after_a_reboot_counts_no_lease_that_add_would_release() {
    let host = Host::new();
    let range = json!({"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.2"});
    let network = host.host_local_in(&range);
    let network = network.with("ipam.statusWhenFull", "fail");
    host.reboot("a");
    network.call_for("ADD", "c1").ok();
    host.reboot("b");
    del_by_the_agent(&network);
    let status = network.clone().with("cniVersion", "1.1.0").call("STATUS");
    status.ok();
    network.call_for("ADD", "c2").ok();
    status.error().expect(50, &["1 of 1"]);
}
