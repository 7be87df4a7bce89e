//! portmap: nothing of the attachment is left, whichever system call of ADD, DEL or GC fails and
//! wherever it is killed.
//!
//! A failed ADD itself leaves nothing. A killed ADD leaves nothing after DEL or GC. An ADD that
//! succeeds despite the fault passes CHECK. Tables without elements, the bridge and its sysctls
//! stay, as after the first attachment. `tests::faults` describes what strace cannot single out.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use tests::faults::{Fault, Harm, Trace};
use tests::lab::{Moment, Subject, torture};
use tests::points::Attack;
use tests::tally::{Ended, Tally};
use tests::{Host, Network, Place as _, Ports, Sandbox};

/// Two ports in both families, with all rules that protect 127.0.0.1 from neighbours.
const PORTMAP: Subject = Subject {
    name: "portmap",
    chain: &["bridge", "portmap"],
    victims: &["portmap"],
};

#[test]
fn an_add_whose_calls_fail_leaves_nothing() {
    torture(PORTMAP, (Moment::Add, Attack::Failure), (155, 3));
}

#[test]
fn an_add_whose_messages_are_refused_leaves_nothing() {
    torture(PORTMAP, (Moment::Add, Attack::Refusal), (35, 7));
}

#[test]
fn an_add_that_is_killed_leaves_nothing_after_del_or_gc() {
    torture(PORTMAP, (Moment::Add, Attack::Kill), (180, 7));
}

#[test]
fn a_first_add_that_fails_spoils_nothing_for_the_next_one() {
    torture(PORTMAP, (Moment::FirstAdd, Attack::Failure), (155, 3));
}

#[test]
fn a_first_add_that_is_killed_spoils_nothing_for_the_next_one() {
    torture(PORTMAP, (Moment::FirstAdd, Attack::Kill), (55, 7));
}

#[test]
fn the_next_removal_completes_one_whose_calls_failed() {
    torture(PORTMAP, (Moment::Removal, Attack::Failure), (230, 1));
}

#[test]
fn the_next_removal_completes_one_whose_messages_were_refused() {
    torture(PORTMAP, (Moment::Removal, Attack::Refusal), (50, 7));
}

#[test]
fn the_next_removal_completes_a_killed_one() {
    torture(PORTMAP, (Moment::Removal, Attack::Kill), (90, 6));
}

/// An attachment with ports, and an ADD of it with other ports and conditions.
struct Again<'h> {
    host: &'h Host,
    a: Sandbox,
    ports: Ports<'h>,
    first: Network<'h>,
    second: Network<'h>,
}

impl<'h> Again<'h> {
    fn new(host: &'h Host) -> Self {
        let a = host.sandbox("a");
        let ports = host
            .ports()
            .with("conditionsV4", json!(["ip saddr != 192.0.2.7"]));
        let first = ports.attach(&a, &["8080:80", "192.0.2.1:8081:81"]);
        let second = Ports::asking(&first, &["8080:82", "192.0.2.1:7070:80"]);
        let second = second.with("conditionsV4", json!(["ip saddr != 192.0.2.8"]));
        Self {
            host,
            a,
            ports,
            first,
            second,
        }
    }

    /// Returns rules and records; incomplete records are overwritten or removed later.
    fn all(&self) -> String {
        let rules = self.host.run("nft", &["list", "ruleset"]);
        let mut records = records();
        records.retain(|it| !it.ends_with("new-cni:pods:a:eth0"));
        let records = records.iter().map(|it| fs::read_to_string(it).unwrap());
        rules + &records.collect::<String>()
    }

    /// Runs a second ADD with the fault. It must leave the first one's work alone, unless it
    /// succeeds or is killed. In every other turn a repetition of the first ADD restores
    /// everything. DEL removes everything.
    fn attempt(&self, fault: &Fault, turn: usize) -> (Ended, Result<(), String>) {
        self.first.add(&self.a);
        let before = self.all();
        let file = self.host.dir().join("calls");
        let outcome = fault.strikes(&self.second.on("ADD", &self.a), &file).run();
        let ended = match outcome.status.code() {
            Some(0) => Ended::Succeeded,
            Some(1) => Ended::Failed,
            _ => Ended::Killed,
        };
        let mut verdict = Ok(());
        let mut expect = |what: &str, is_met: fn(&str, &str) -> bool| {
            let found = self.all();
            if verdict.is_ok() && !is_met(&found, &before) {
                verdict = Err(format!("{fault}: {outcome:#?}: {what}: {found}"));
            }
        };
        if ended == Ended::Failed {
            expect("the first one's", |found, before| found == before);
        }
        if turn.is_multiple_of(2) {
            self.first.add(&self.a);
            expect("done again", |found, before| found == before);
        }
        self.ports.forgotten(&self.a).ok();
        expect("after DEL", |found, _| {
            let left = ["cni:", "conditions-", "elements"];
            !left.iter().any(|it| found.contains(it)) && records().is_empty()
        });
        (ended, verdict)
    }
}

fn records() -> Vec<PathBuf> {
    let records = fs::read_dir("/run/cni/portmap").unwrap();
    records.map(|it| it.unwrap().path()).collect()
}

#[track_caller]
fn torture_again(attack: Attack, (points, of_ten): (usize, usize)) {
    let host = Host::new();
    let again = Again::new(&host);
    again.first.add(&again.a);
    let add = again.second.on("ADD", &again.a);
    let trace = Trace::of(&add, &host.dir().join("calls"));
    again.ports.forgotten(&again.a).ok();
    let mut tally = Tally::new(["portmap", "second ADD", attack.name()]);
    let faults = tally.choose(attack.faults(&trace));
    for (turn, fault) in faults.iter().enumerate() {
        let (ended, verdict) = again.attempt(fault, turn);
        let is_killed = (ended == Ended::Killed) == (fault.harm() == Harm::Kill);
        assert!(is_killed || ended == Ended::Succeeded, "{fault}: {ended:?}");
        tally.note(Some(ended), verdict);
    }
    tally.finish(points, of_ten);
}

#[test]
fn a_second_add_whose_calls_fail_leaves_what_the_first_did() {
    torture_again(Attack::Failure, (300, 3));
}

#[test]
fn a_second_add_whose_messages_are_refused_leaves_what_the_first_did() {
    torture_again(Attack::Refusal, (70, 7));
}

#[test]
fn a_second_add_that_is_killed_leaves_nothing_after_del() {
    torture_again(Attack::Kill, (110, 7));
}
