//! What the black-box tests stand on: a host and sandboxes of their own, the executables
//! run as a runtime runs them, and readers of what the kernel then holds.
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
//! The executables are those of the directory `PLUGINS_UNDER_TEST`, else those that
//! `cargo build --workspace --bins` put beside the tests. Nothing here links them.

mod capture;
mod chain;
mod dnsmasq;
pub mod escape;
mod example;
pub mod faults;
mod host;
pub mod lab;
mod locker;
mod network;
mod place;
mod plugin;
pub mod points;
mod ports;
pub mod router_advertisement;
mod sandbox;
mod snapshot;
pub mod tally;
mod tool;
pub mod traffic;

pub use capture::{Capture, Frame, Saying};
pub use chain::{Chain, Removal};
pub use dnsmasq::Dnsmasq;
pub use example::{Example, Pods};
pub use host::Host;
pub use locker::Locker;
pub use network::Network;
pub use place::{Place, run};
pub use plugin::{Invocation, Outcome, Refusal};

pub use ports::Ports;
pub use sandbox::{Inhabitant, Sandbox};
pub use snapshot::Snapshot;
pub use tool::{Findings, Tool};

/// Where the reference's executables are: Debian's containernetworking-plugins.
pub const REFERENCE: &str = "/usr/lib/cni";

/// The executables of a release.
pub const EXECUTABLES: [&str; 6] = [
    "bridge",
    "host-local",
    "loopback",
    "portmap",
    "bandwidth",
    "cnitool",
];

/// How long anything that happens in the background may take.
pub const DEADLINE: std::time::Duration = std::time::Duration::from_secs(10);

/// Runs `work` for all of them at once.
pub fn at_once<S: Sync, T: Send>(subjects: &[S], work: impl Fn(&S) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let subjects = subjects.iter();
        let running: Vec<_> = subjects.map(|it| scope.spawn(move || work(it))).collect();
        let ended = running.into_iter().map(|thread| thread.join().unwrap());
        ended.collect()
    })
}

/// Asks again until `condition` holds or [`DEADLINE`] is over. Every question is an
/// exec or a read, so there is nothing to be gained by a pause in between.
pub fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let start = std::time::Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() > DEADLINE {
            return false;
        }
        std::thread::yield_now();
    }
}
