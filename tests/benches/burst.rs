//! A node that starts or stops many pods at once, and the delay for other programs that use its
//! network.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use tests::{Host, Sandbox, pause};

use crate::chain::Chain;
use crate::report::Report;
use crate::timing::{Call, Side, in_turns};

const PODS: u16 = 100;
const PROCESSES: usize = 16;
const ROUNDS: u32 = 3;

/// Runs the chain of 100 pods in 16 processes, and times other programs meanwhile.
pub fn run(host: &Host, mut sides: [Side; 2], report: &mut Report) {
    in_turns(&mut sides, ROUNDS, |side, number| {
        let pod = |pod| host.sandbox(&format!("burst-{}-{number}-{pod}", side.name));
        let pods: Vec<_> = (0..PODS).map(pod).collect();
        let mut chains: Vec<_> = (0..PODS).map(|pod| Chain::new(side, pod)).collect();
        // Creates each side's host-wide objects first: concurrent ADDs of the reference fail to
        // create them.
        let mut first = [Chain::new(side, 0)];
        all(side, &pods, &mut first, "ADD");
        all(side, &pods, &mut first, "DEL");
        let (_, meanwhile) = beside_others(|| pause(Duration::from_secs(1)));
        note_others(side, meanwhile, "nobody else");
        for verb in ["ADD", "DEL"] {
            let mut calls = Vec::new();
            let (time, meanwhile) = beside_others(|| calls = all(side, &pods, &mut chains, verb));
            side.note(&format!("{PODS} pods, {verb}"), time);
            for (plugin, time) in calls {
                side.note(&format!("of them, {plugin} {verb}"), time);
            }
            note_others(side, meanwhile, verb);
        }
    });
    let title = format!(
        "{PODS} pods by {PROCESSES} processes, {ROUNDS} rounds in turns; and what others wait meanwhile"
    );
    report.times(&title, &sides);
}

/// Sends `verb` to the chains of the pods, and returns the time of each call.
fn all(side: &Side, pods: &[Sandbox], chains: &mut [Chain], verb: &str) -> Vec<(String, Duration)> {
    let times = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    let work: Vec<_> = pods.iter().zip(chains).map(Mutex::new).collect();
    thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                while let Some(work) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (pod, chain) = &mut *work.lock().unwrap();
                    chain.walk(verb, |plugin, request| {
                        let (output, time) = side.run(&Call::of(pod, plugin, verb), request);
                        times.lock().unwrap().push((plugin.to_owned(), time));
                        output
                    });
                }
            });
        }
    });
    times.into_inner().unwrap()
}

/// Runs `work` and returns its time, with the times of other programs meanwhile.
fn beside_others(work: impl FnOnce()) -> (Duration, Vec<(&'static str, Duration)>) {
    // Dropping `working`, even by a panic, ends the other programs.
    let (working, over) = mpsc::channel();
    thread::scope(|scope| {
        let others = scope.spawn(move || others(&over));
        let start = Instant::now();
        work();
        let time = start.elapsed();
        drop(working);
        (time, others.join().unwrap())
    })
}

/// Repeats operations of other programs and returns the time of each.
fn others(over: &Receiver<()>) -> Vec<(&'static str, Duration)> {
    let mut times = Vec::new();
    while over.try_recv() == Err(TryRecvError::Empty) {
        let rules = "add table ip others; delete table ip others";
        times.push(("nft", time("nft", &[rules])));
        let add = ["link", "add", "others0", "type", "veth", "peer", "others1"];
        times.push(("ip link", time("ip", &add)));
        time("ip", &["link", "delete", "others0"]);
    }
    times
}

fn time(program: &str, words: &[&str]) -> Duration {
    let start = Instant::now();
    let status = Command::new(program).args(words).status().unwrap();
    assert!(status.success(), "{program} {words:?}");
    start.elapsed()
}

fn note_others(side: &mut Side, times: Vec<(&str, Duration)>, meanwhile: &str) {
    for (who, time) in times {
        side.note(&format!("{who}, {meanwhile}"), time);
    }
}
