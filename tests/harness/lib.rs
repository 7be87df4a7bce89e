//! Basis of the black-box tests: hosts and sandboxes of their own, runs of the executables as a
//! runtime runs them, and readers of the kernel's state.
//!
//! ```no_run
//! use tests::{Host, Place as _};
//!
//! let host = Host::new();
//! let a = host.sandbox("a");
//! let network = host.bridge();
//! let result = network.add(&a);
//! assert_eq!(result["interfaces"][2]["name"], "eth0");
//! assert_eq!(a.addresses("eth0"), ["10.1.0.2/24", "fd00:1::2/64"]);
//! assert!(a.pings("10.1.0.1"));
//! ```
//!
//! The executables are those in `PLUGINS_UNDER_TEST`, or else those that `cargo build --workspace
//! --bins` put beside the tests. This crate does not link them.

mod agent;
pub mod allocated;
pub mod api_server;
pub mod auto;
mod boot;
mod capture;
mod chain;
mod checkpoint;
pub mod cluster;
pub mod commands;
mod counter;
pub mod cri;
pub mod datapath;
pub mod devices;
pub mod dhcp;
mod dnsmasq;
pub mod escape;
mod example;
pub mod faults;
pub mod fence;
mod firewalld;
mod fleet;
mod host;
pub mod http;
pub mod interface;
pub mod intruder;
mod kubelet;
pub mod lab;
pub mod latency;
pub mod leaks;
pub mod limited;
mod locker;
mod machine;
pub mod metered;
mod namespaces;
mod network;
mod nic;
pub mod open_metrics;
pub mod packets;
mod place;
mod plugin;
mod pod_resources;
pub mod points;
pub mod ports;
pub mod promql;
pub mod releases;
pub mod repair;
pub mod result;
pub mod router_advertisement;
mod sandbox;
mod snapshot;
mod strategic;
pub mod stream;
pub mod tally;
mod tool;
pub mod traffic;
pub mod vlans;
pub mod wireguard;

use std::sync::LazyLock;

pub use agent::{Agent, ended};
pub use capture::{Capture, Frame, Saying};
pub use chain::{Chain, Removal};
pub use checkpoint::Checkpoint;
pub use dnsmasq::Dnsmasq;
pub use example::{Example, Pods};
pub use firewalld::Firewalld;
pub use fleet::Fleet;
pub use host::Host;
pub use kubelet::{Kubelet, Manner, Plugin};
pub use locker::Locker;
pub use machine::{Machine, Opening};
pub use network::Network;
pub use place::{Place, run};
pub use plugin::{Invocation, Outcome, Refusal};
pub use pod_resources::PodResources;

pub use ports::Ports;
pub use sandbox::{Inhabitant, Sandbox};
pub use snapshot::{Snapshot, warm_host};
pub use tool::{Findings, Tool};

/// Directory of the reference's executables: Debian's containernetworking-plugins.
pub const REFERENCE: &str = "/usr/lib/cni";

/// Plugins of the suite.
pub static PLUGINS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let lines = include_str!("../../crates/plugins.txt").lines();
    let plugins = lines.filter(|line| !line.starts_with('#'));
    plugins.filter_map(|line| line.split(' ').next()).collect()
});

/// Executables of a release.
pub static EXECUTABLES: LazyLock<Vec<&str>> =
    LazyLock::new(|| PLUGINS.iter().copied().chain(["cnitool"]).collect());

/// Longest time of anything in the background.
pub const DEADLINE: std::time::Duration = std::time::Duration::from_secs(10);

const PAUSE: std::time::Duration = std::time::Duration::from_millis(2);

/// Runs `work` for all subjects at once.
pub fn at_once<S: Sync, T: Send>(subjects: &[S], work: impl Fn(&S) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let subjects = subjects.iter();
        let running: Vec<_> = subjects.map(|it| scope.spawn(move || work(it))).collect();
        let ended = running.into_iter().map(|thread| thread.join().unwrap());
        ended.collect()
    })
}

/// Repeats `condition` until it holds or three times [`DEADLINE`] have passed: a test that makes a
/// thousand links holds the kernel's lock of links, which the kernel needs for addresses and routes.
/// Pauses between the checks, because tests that run beside it need the processor.
pub fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let start = std::time::Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() > 3 * DEADLINE {
            return false;
        }
        std::thread::park_timeout(PAUSE);
    }
}

/// Waits for this time. `park_timeout` alone returns at once if an ended thread has woken this one.
pub fn pause(time: std::time::Duration) {
    traffic::wait_until(std::time::Instant::now() + time);
}

/// Returns a user other than root, or root itself in a user namespace that has no other.
pub fn other_user() -> u32 {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
    let numbers = map.split_whitespace().map(|it| it.parse().unwrap());
    // Each line has the first user inside, the first one outside, and their number.
    let [.., first, _, count] = numbers.collect::<Vec<u32>>()[..] else {
        panic!("{map:?}")
    };
    (first + count - 1).min(1234)
}
