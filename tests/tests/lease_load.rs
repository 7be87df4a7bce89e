//! host-local under load: many concurrent processes, some of which are killed.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tests::{Host, Network};

/// Number of concurrent processes.
const AT_ONCE: usize = 32;

/// Runs `work` with every number below `count` on `threads` threads.
fn in_turns<T: Send>(threads: usize, count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        let numbers = numbers.take_while(|number| *number < count);
        numbers.map(&work).collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let done = running.into_iter().map(|thread| thread.join().unwrap());
        done.flatten().collect()
    })
}

/// Returns the names of all files except leases, including the index.
fn other_files(host: &Host) -> Vec<String> {
    let directories = ["pods", ".host-local/pods", ".host-local/pods/records"];
    let names = directories.iter().flat_map(|directory| {
        let entries = fs::read_dir(host.lease_dir().join(directory)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap())
    });
    let mut names: Vec<_> = names
        .filter(|name| name.parse::<std::net::IpAddr>().is_err())
        .collect();
    names.sort();
    names
}

#[test]
fn two_thousand_at_once_get_every_address_once_and_give_all_back() {
    let host = Host::new();
    let range = json!({"subnet": "10.1.0.0/16", "rangeEnd": "10.1.7.209"});
    let network = host.host_local_in(&range);
    network.call_for("ADD", "first").ok();
    network.call_for("DEL", "first").ok();
    let before = other_files(&host);
    let leased = in_turns(AT_ONCE, 2_000, |number| {
        let result = network.call_for("ADD", &format!("c{number}")).ok();
        result["ips"][0]["address"].as_str().unwrap().to_owned()
    });
    let distinct: BTreeSet<_> = leased.iter().collect();
    assert_eq!((leased.len(), distinct.len()), (2_000, 2_000));
    assert_eq!(host.leases("pods").len(), 2_000);
    let refusal = network.call_for("ADD", "one-more").error();
    assert!(refusal.mentions("2000 of 2000"), "{refusal:?}");
    in_turns(AT_ONCE, 2_000, |number| {
        let gone = network.call_for("DEL", &format!("c{number}")).ok();
        assert_eq!(gone, Value::Null);
    });
    assert!(host.leases("pods").is_empty());
    assert_eq!(other_files(&host), before);
}

/// Kills a DEL in every fourth call and an ADD in the others, at an instant between its start and a
/// time after its end.
fn kill(network: &Network<'_>, number: usize) {
    let id = format!("killed{number}");
    let verb = if number % 4 == 3 { "DEL" } else { "ADD" };
    if verb == "DEL" {
        network.call_for("ADD", &id).ok();
    }
    let after = Duration::from_micros((number as u64 * 7_919) % 12_000);
    network.call_for(verb, &id).kill_after(after);
}

/// Returns empty leases: concurrent ones may change at any time, but are never empty.
fn empty_files(host: &Host) -> Vec<String> {
    let entries = fs::read_dir(host.lease_dir().join("pods")).unwrap();
    let files = entries.map(|entry| entry.unwrap());
    // Other processes work meanwhile, so a file may disappear.
    let empty = files.filter(|file| file.metadata().is_ok_and(|it| it.len() == 0));
    let names = empty.map(|file| file.file_name().into_string().unwrap());
    names.filter(|name| name != "lock").collect()
}

#[test]
fn two_hundred_kills_under_load_leave_whole_leases_that_del_and_gc_find() {
    let host = Host::new();
    let range = json!({"subnet": "10.1.0.0/22"});
    let network = host.host_local_in(&range);
    network.call_for("ADD", "load").ok();
    let work = |number: usize| {
        let id = format!("load{number}");
        network.call_for("ADD", &id).ok();
        network.call_for("DEL", &id).ok();
    };
    let kill = |number: usize| {
        kill(&network, number);
        assert_eq!(empty_files(&host), [] as [&str; 0]);
    };
    thread::scope(|scope| {
        scope.spawn(|| in_turns(4, 400, work));
        in_turns(4, 200, kill);
    });
    let left = host.leases("pods");
    let holders: BTreeSet<_> = left.values().map(String::as_str).collect();
    assert_eq!(
        holders.len(),
        left.len(),
        "an attachment holds two: {left:?}"
    );
    let is_whole = |it: &&str| it.ends_with("\r\neth0");
    assert!(holders.iter().all(is_whole), "{left:?}");
    for number in (0..200).step_by(2) {
        network.call_for("DEL", &format!("killed{number}")).ok();
    }
    let left = host.leases("pods").len();
    assert!(left > 1, "every kill came too early to prove anything");
    network.gc(&[]).ok();
    assert!(host.leases("pods").is_empty());
    let others = other_files(&host);
    assert_eq!(others, ["last_reserved_ip.0", "lock", "records", "state"]);
}
