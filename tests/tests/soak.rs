//! Chains of all plugins under random concurrent calls for many sandboxes, compared with a model.
//! Any call may be killed, and the node may reboot.
//!
//! `TORTURE_SEED` determines the calls and kills, `TORTURE` their number, the kernel their order.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::tally::{Ended, Random, Tally, remark, sample, seed};
use tests::traffic::tcp_by_port;
use tests::{Chain, Fleet, Host, Place as _, Removal, Sandbox, at_once, eventually};

/// Size of the test.
#[derive(Debug, Clone, Copy)]
struct Scale {
    sandboxes: u16,
    workers: usize,
    steps: usize,
    /// Time after which no step starts.
    limit: Duration,
}

impl Scale {
    const WHOLE: Self = Self {
        sandboxes: 300,
        workers: 32,
        steps: 10_000,
        limit: Duration::from_mins(30),
    };

    /// Returns the size of a test that takes as long as another one with `faults` faults.
    fn short(faults: usize) -> Self {
        Self {
            sandboxes: 64,
            workers: 16,
            steps: 20 * faults,
            limit: Duration::from_secs(40),
        }
    }
}

/// Reboots of one run, approximately.
const REBOOTS: usize = 4;

/// Expected state of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Absent,
    /// Attached, with the result of its ADD.
    Attached(Value),
    /// Unknown, because a call was killed.
    Unknown,
}

/// A pod with one call at a time, as runtimes do it.
struct Pod<'h> {
    sandbox: Sandbox,
    chain: Chain<'h>,
    port: u16,
    state: Mutex<State>,
}

struct Soak<'h> {
    host: &'h Host,
    fleet: Fleet,
    pods: &'h [Pod<'h>],
    /// Number of reboots; callers of plugins hold the read lock.
    boots: RwLock<usize>,
    tally: Mutex<Tally>,
    scale: Scale,
    start: Instant,
    /// Highest number of pods attached at the same time.
    most_attached: AtomicUsize,
}

type Stepped = (Ended, Result<State, String>);

impl<'h> Pod<'h> {
    fn new(host: &'h Host, fleet: Fleet, number: u16) -> Self {
        let port = 10_000 + 2 * number;
        Self {
            sandbox: host.sandbox(&format!("p{number}")),
            chain: fleet.chain(host, number).with_ports([port, port + 1]),
            port,
            state: Mutex::new(State::Absent),
        }
    }

    fn state(&self) -> State {
        self.state.lock().unwrap().clone()
    }

    /// Runs ADD to its end.
    fn add(&self) -> Stepped {
        (
            Ended::Succeeded,
            self.chain.add(&self.sandbox).map(State::Attached),
        )
    }

    /// Runs ADD and kills one plugin, which may have ended.
    fn add_killed(&self, random: &mut Random) -> Stepped {
        let place = random.below(self.chain.len());
        let added = self.chain.add_first(place, &self.sandbox).map(|before| {
            let add = self.chain.call(place, "ADD", (&self.sandbox, &before));
            add.kill_after(instant(random));
            State::Unknown
        });
        (Ended::Killed, added)
    }

    fn remove(&self, removal: Removal, result: &Value) -> Stepped {
        let removed = self.chain.remove(removal, (&self.sandbox, result));
        (Ended::Succeeded, removed.and_then(|()| self.expect_empty()))
    }

    /// Runs DEL and kills one plugin, which may have ended.
    fn remove_killed(&self, result: &Value, random: &mut Random) -> Stepped {
        let removal = Removal::ALL[random.below(2)];
        let order = self.chain.order(removal);
        let place = random.below(order.len());
        for plugin in &order[..place] {
            let run = self
                .chain
                .removal(*plugin, removal, (&self.sandbox, result));
            let outcome = run.run();
            if !outcome.status.success() {
                return (Ended::Failed, Err(format!("DEL fails: {outcome:?}")));
            }
        }
        let run = self
            .chain
            .removal(order[place], removal, (&self.sandbox, result));
        run.kill_after(instant(random));
        (Ended::Killed, Ok(State::Unknown))
    }

    /// Runs a second ADD, which must fail and leave the first one's work alone.
    fn add_again(&self, result: &Value) -> Stepped {
        let add = self
            .chain
            .call(0, "ADD", (&self.sandbox, &Value::Null))
            .run();
        if add.status.success() {
            return (
                Ended::Succeeded,
                Err(format!("a second ADD succeeds: {add:?}")),
            );
        }
        let checked = self.check(result);
        (
            Ended::Failed,
            checked.map(|()| State::Attached(result.clone())),
        )
    }

    fn check(&self, result: &Value) -> Result<(), String> {
        self.chain
            .check_first(self.chain.len(), (&self.sandbox, result))
    }

    fn expect_empty(&self) -> Result<State, String> {
        let links = self.sandbox.links();
        if links == ["lo"] {
            return Ok(State::Absent);
        }
        Err(format!(
            "{} has {links:?} after it was removed",
            self.sandbox.name()
        ))
    }
}

/// Returns a time within a run, or sometimes after it.
fn instant(random: &mut Random) -> Duration {
    Duration::from_micros(u64::try_from(random.below(20_000)).unwrap())
}

impl Soak<'_> {
    fn work(&self, worker: usize) {
        let mut random = Random::new(seed().wrapping_add(u64::try_from(worker).unwrap() << 32));
        let mut left = self.scale.steps / self.scale.workers;
        while left > 0 && self.start.elapsed() < self.scale.limit {
            if random.below(self.scale.steps / REBOOTS) == 0 {
                self.reboot();
            }
            let _up = self.boots.read().unwrap();
            let pod = &self.pods[random.below(self.pods.len())];
            let Ok(mut state) = pod.state.try_lock() else {
                continue;
            };
            let (ended, outcome) = self.step(pod, &state, &mut random);
            let outcome = outcome.and_then(|next| self.expect_own_addresses(next));
            let told = |complaint| format!("{complaint}\n    {} was {state:?}", pod.sandbox.name());
            let (next, verdict) = match outcome {
                Ok(next) => (next, Ok(())),
                Err(complaint) => (State::Unknown, Err(told(complaint))),
            };
            *state = next;
            self.tally.lock().unwrap().note(Some(ended), verdict);
            left -= 1;
        }
    }

    /// Reboots: renews the sandboxes, and deletes links, rules and port records, but keeps the
    /// leases.
    fn reboot(&self) {
        let mut boots = self.boots.write().unwrap();
        let has_bridge = self.host.has_link("cni0");
        let mac = has_bridge.then(|| self.host.mac("cni0"));
        for pod in self.pods {
            let mut state = pod.state.lock().unwrap();
            if *state != State::Absent && pod.sandbox.has_link("eth0") {
                pod.sandbox.ip("link delete eth0");
            }
            pod.sandbox.renew();
            *state = State::Absent;
        }
        for link in self.host.links().iter().filter(|it| *it != "lo") {
            self.host.ip(&format!("link delete {link}"));
        }
        self.host.run("nft", &["flush", "ruleset"]);
        fs::remove_dir_all("/run/cni").unwrap();
        *boots += 1;
        self.host.reboot(&boots.to_string());
        warm_up(self.host, self.fleet);
        // The model compares the bridge with the one of the first boot.
        if let Some(mac) = mac {
            self.host.ip(&format!("link set cni0 address {mac}"));
        }
    }

    fn step(&self, pod: &Pod<'_>, state: &State, random: &mut Random) -> Stepped {
        let null = Value::Null;
        let percent = random.below(100);
        match (state, percent) {
            (State::Absent, 0..60) => pod.add(),
            (State::Absent, 60..85) => pod.add_killed(random),
            (State::Attached(result), 0..30) => {
                let checked = pod.check(result).map(|()| state.clone());
                (Ended::Succeeded, checked)
            }
            (State::Attached(result), 30..60) => pod.remove(Removal::ALL[random.below(2)], result),
            (State::Attached(result), 60..80) => pod.remove_killed(result, random),
            (State::Attached(result), 80..88) => pod.add_again(result),
            (State::Absent, 85..93) | (State::Unknown, 0..50) => {
                pod.remove(Removal::ALL[random.below(2)], &null)
            }
            (State::Unknown, 50..80) => pod.remove_killed(&null, random),
            (State::Unknown, _) | (State::Attached(_), 88..94) => self.collect(pod),
            _ => (Ended::Succeeded, pod.chain.status().map(|()| state.clone())),
        }
    }

    /// Checks that no other idle pod has an address of the pod whose next `state` is attached.
    fn expect_own_addresses(&self, state: State) -> Result<State, String> {
        let State::Attached(result) = &state else {
            return Ok(state);
        };
        let own = addresses(result);
        let mut attached = 1;
        for other in self.pods {
            // The lock of the pod itself is held.
            let Ok(other_state) = other.state.try_lock() else {
                continue;
            };
            if let State::Attached(result) = &*other_state {
                attached += 1;
                if addresses(result).iter().any(|it| own.contains(it)) {
                    return Err(format!("{own:?} is {}'s, too", other.sandbox.name()));
                }
            }
        }
        self.most_attached.fetch_max(attached, Ordering::Relaxed);
        Ok(state)
    }

    /// Runs GC with a list of all pods except `pod`.
    fn collect(&self, pod: &Pod<'_>) -> Stepped {
        let others = self.pods.iter().map(|it| &it.sandbox);
        let others: Vec<_> = others
            .filter(|it| it.name() != pod.sandbox.name())
            .collect();
        let collected = pod.chain.gc(&others);
        (
            Ended::Succeeded,
            collected.and_then(|()| pod.expect_empty()),
        )
    }

    fn tell(&self, attached: usize) {
        remark(&format!(
            "soak of {}: {} sandboxes, {} of them attached at once, {attached} in the end, by {} processes at a \
             time, with {} reboots, in {} s",
            self.fleet.name(),
            self.pods.len(),
            self.most_attached.load(Ordering::Relaxed),
            self.scale.workers,
            self.boots.read().unwrap(),
            self.start.elapsed().as_secs(),
        ));
    }

    /// Checks that every pod matches the model and is reachable through its port.
    fn expect_model(&self, host: &Host) {
        let mut leased = BTreeSet::new();
        for pod in self.pods {
            let State::Attached(result) = pod.state() else {
                continue;
            };
            pod.check(&result).unwrap();
            for address in addresses(&result) {
                assert!(leased.insert(address.clone()), "{address} is leased twice");
            }
            let target = format!("127.0.0.1:{}", pod.port);
            let reached = tcp_by_port(host, &target, (&pod.sandbox, 80));
            assert!(reached.is_some(), "{target}");
        }
        if self.fleet.leases() {
            let held: BTreeSet<_> = host.leases("pods").into_keys().collect();
            assert_eq!(held, leased);
        }
    }
}

fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap().iter();
    let with_prefix = ips.map(|ip| ip["address"].as_str().unwrap());
    let alone = with_prefix.map(|it| it.split('/').next().unwrap().to_owned());
    alone.collect()
}

/// Creates the bridge, if any, with its own MAC and the tables, and enables forwarding.
fn warm_up(host: &Host, fleet: Fleet) {
    let pod = Pod::new(host, fleet, 9_999);
    let result = pod.chain.add(&pod.sandbox).unwrap();
    pod.chain
        .remove(Removal::Del, (&pod.sandbox, &result))
        .unwrap();
    pod.sandbox.remove();
}

#[test]
fn after_random_verbs_and_kills_other_pods_work_and_gc_leaves_nothing() {
    soak(Fleet::Bridge);
}

#[test]
fn after_random_verbs_and_kills_in_podmans_chain_other_pods_work_and_gc_leaves_nothing() {
    soak(Fleet::Podman);
}

#[test]
fn after_random_verbs_and_kills_of_ptp_and_static_other_pods_work_and_gc_leaves_nothing() {
    soak(Fleet::Fixed);
}

fn soak(fleet: Fleet) {
    let host = Host::new();
    warm_up(&host, fleet);
    let before = host.snapshot();
    let scale = sample().map_or(Scale::WHOLE, Scale::short);
    let pods: Vec<_> = (0..scale.sandboxes)
        .map(|number| Pod::new(&host, fleet, number))
        .collect();
    let mut tally = Tally::new([fleet.name(), "any", "soak"]);
    tally.plan(scale.steps / scale.workers * scale.workers);
    let soak = Soak {
        host: &host,
        fleet,
        pods: &pods,
        boots: RwLock::default(),
        tally: Mutex::new(tally),
        scale,
        start: Instant::now(),
        most_attached: AtomicUsize::new(0),
    };
    let workers: Vec<_> = (0..scale.workers).collect();
    at_once(&workers, |worker| soak.work(*worker));
    let attached = pods
        .iter()
        .filter(|pod| matches!(pod.state(), State::Attached(_)));
    let attached = attached.map(|pod| &pod.sandbox).collect::<Vec<_>>();
    let collected = pods[0].chain.gc(&attached);
    soak.expect_model(&host);
    soak.tell(attached.len());
    collected.and_then(|()| pods[0].chain.gc(&[])).unwrap();
    host.snapshot().assert_same_as(&before);
    assert!(pods.iter().all(|pod| pod.sandbox.links() == ["lo"]));
    assert!(
        eventually(|| host.left_over().is_empty()),
        "{:?}",
        host.left_over()
    );
    soak.tally.into_inner().unwrap().finish(scale.steps / 2, 0);
}
