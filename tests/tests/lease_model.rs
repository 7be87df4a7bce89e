//! host-local with random calls, kills and reboots, alternating between ours and the reference,
//! compared with a model of the leases.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use tests::{Host, Invocation, Network};

/// There are fewer addresses than containers, so ADD sometimes finds none.
const ADDRESSES: u8 = 5;
const CONTAINERS: u8 = 8;

#[derive(Debug, Clone)]
enum Step {
    Add(By, u8),
    Del(By, u8),
    /// ADD, killed after this many microseconds.
    Kill(By, u8, u16),
    /// GC that lists these containers.
    Gc(BTreeSet<u8>),
    Check(u8),
    Reboot,
    LoseIndex,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Ours,
    Reference,
}

fn step() -> impl Strategy<Value = Step> {
    let by = || prop_oneof![2 => Just(By::Ours), 1 => Just(By::Reference)];
    let container = || 0..CONTAINERS;
    prop_oneof![
        6 => (by(), container()).prop_map(|(by, it)| Step::Add(by, it)),
        4 => (by(), container()).prop_map(|(by, it)| Step::Del(by, it)),
        2 => (by(), container(), 0..4000u16).prop_map(|(by, it, after)| Step::Kill(by, it, after)),
        1 => prop::collection::btree_set(container(), 0..8).prop_map(Step::Gc),
        2 => container().prop_map(Step::Check),
        1 => Just(Step::Reboot),
        1 => Just(Step::LoseIndex),
    ]
}

/// Expected leases.
#[derive(Debug, Default)]
struct Model {
    boot: u32,
    /// Whether ours has run ADD in this boot: only ADD creates the marker of a boot.
    has_marker: bool,
    leases: BTreeMap<u8, Held>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    address: String,
    /// Boot in which ours first recorded it with the boot's marker, if the record still exists.
    seen: Option<u32>,
}

impl Model {
    /// Every change by ours records all existing leases.
    fn seen_by_ours(&mut self) {
        for held in self.leases.values_mut() {
            held.seen = held.seen.or(self.has_marker.then_some(self.boot));
        }
    }

    /// ADD by ours also releases the leases of earlier boots.
    fn added_by_ours(&mut self) {
        let boot = self.boot;
        self.has_marker = true;
        self.leases
            .retain(|_, held| held.seen.is_none_or(|seen| seen == boot));
        self.seen_by_ours();
    }

    fn contents(&self) -> BTreeMap<String, String> {
        let leases = self.leases.iter();
        let leases = leases.map(|(id, held)| (held.address.clone(), format!("c{id}\r\neth0")));
        leases.collect()
    }
}

struct Run<'h> {
    host: &'h Host,
    ours: Network<'h>,
    model: Model,
}

impl Run<'_> {
    fn take(&mut self, step: &Step) {
        match step {
            Step::Add(by, container) => self.add(*by, *container),
            Step::Del(by, container) => {
                self.call(*by, "DEL", *container).ok();
                self.note_call(*by);
                self.model.leases.remove(container);
            }
            Step::Kill(by, container, after) => self.kill(*by, *container, *after),
            Step::Gc(listed) => self.gc(listed),
            Step::Check(container) => self.check(*container),
            Step::Reboot => {
                self.model.boot += 1;
                self.model.has_marker = false;
                self.host.reboot(&self.model.boot.to_string());
            }
            Step::LoseIndex => {
                drop(fs::remove_dir_all(
                    self.host.lease_dir().join(".host-local"),
                ));
                for held in self.model.leases.values_mut() {
                    held.seen = None;
                }
            }
        }
        assert_eq!(self.host.leases("pods"), self.model.contents(), "{step:?}");
    }

    fn add(&mut self, by: By, container: u8) {
        let outcome = self.call(by, "ADD", container).run();
        if by == By::Ours {
            self.model.added_by_ours();
        }
        let is_full = self.model.leases.len() >= ADDRESSES.into();
        if is_full || self.model.leases.contains_key(&container) {
            outcome.error();
            return;
        }
        let result = outcome.ok();
        let address = result["ips"][0]["address"].as_str().unwrap();
        let address = address.strip_suffix("/24").unwrap().to_owned();
        let seen = (by == By::Ours).then_some(self.model.boot);
        self.model.leases.insert(container, Held { address, seen });
    }

    /// Kills an ADD. Only the file shows whether the lease was made. It is complete, or empty until
    /// ours next reads it if the reference was killed.
    fn kill(&mut self, by: By, container: u8, after: u16) {
        let call = self.call(by, "ADD", container);
        call.kill_after(Duration::from_micros(after.into()));
        let empty = self.host.leases("pods");
        let empty: Vec<_> = empty
            .values()
            .filter(|content| content.is_empty())
            .collect();
        assert!(by == By::Reference || empty.is_empty(), "an empty file");
        // The killed ADD may have released leases of an earlier boot. This one releases them all.
        drop(self.call(By::Ours, "ADD", u8::MAX).run());
        self.call(By::Ours, "DEL", u8::MAX).ok();
        self.model.added_by_ours();
        let content = format!("c{container}\r\neth0");
        let leases = self.host.leases("pods");
        let made = leases.iter().find(|(_, holder)| **holder == content);
        if let Some((address, _)) = made {
            let held = Held {
                address: address.clone(),
                seen: Some(self.model.boot),
            };
            let known = self.model.leases.entry(container).or_insert(held.clone());
            assert_eq!(*known, held, "a second lease");
        }
    }

    fn gc(&mut self, listed: &BTreeSet<u8>) {
        let entry = |id: &u8| json!({"containerID": format!("c{id}"), "ifname": "eth0"});
        let valid: Vec<Value> = listed.iter().map(entry).collect();
        let newest = self.ours.clone().with("cniVersion", "1.1.0");
        let newest = newest.with_key("cni.dev/valid-attachments", valid.into());
        newest.call("GC").ok();
        self.note_call(By::Ours);
        self.model.leases.retain(|id, _| listed.contains(id));
    }

    fn check(&mut self, container: u8) {
        let held = self.model.leases.get(&container);
        let address = held.map_or("10.1.0.2", |held| &held.address);
        let result = json!({"cniVersion": "1.0.0", "ips": [{"address": format!("{address}/24")}]});
        let network = self.ours.clone().with("prevResult", result);
        let outcome = on(&network, "CHECK", container).run();
        assert_eq!(outcome.status.success(), held.is_some(), "{outcome:?}");
    }

    fn call(&self, by: By, verb: &str, container: u8) -> Invocation {
        match by {
            By::Ours => on(&self.ours, verb, container),
            By::Reference => on(&self.ours.by_reference(), verb, container),
        }
    }

    fn note_call(&mut self, by: By) {
        if by == By::Ours {
            self.model.seen_by_ours();
        }
    }
}

fn on(network: &Network<'_>, verb: &str, container: u8) -> Invocation {
    network.call_for(verb, &format!("c{container}"))
}

#[test]
fn store_holds_what_the_model_holds_whatever_happens() {
    let config = Config {
        cases: 24,
        max_shrink_iters: 64,
        ..Config::default()
    };
    let steps = prop::collection::vec(step(), 40);
    let host = Host::new();
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&steps, |steps| {
        drop(fs::remove_dir_all(host.lease_dir()));
        let range =
            json!({"subnet": "10.1.0.0/24", "rangeEnd": format!("10.1.0.{}", ADDRESSES + 1)});
        let mut run = Run {
            host: &host,
            ours: host.host_local_in(&range),
            model: Model::default(),
        };
        host.reboot("0");
        for step in &steps {
            run.take(step);
        }
        run.gc(&BTreeSet::new());
        assert_eq!(host.leases("pods"), BTreeMap::new());
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
