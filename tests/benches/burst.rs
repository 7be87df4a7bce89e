//! A node that starts or loses many pods at once, and what whoever else works on its network
//! notices of that.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tests::{Host, Sandbox};

use crate::chain::Chain;
use crate::report::Report;
use crate::timing::{Call, Side, in_turns};

const PODS: u16 = 100;
const PROCESSES: usize = 16;
const ROUNDS: u32 = 3;

/// The chain of 100 pods by 16 processes, and how long others take meanwhile.
pub fn run(host: &Host, mut sides: [Side; 2], report: &mut Report) {
    in_turns(&mut sides, ROUNDS, |side, number| {
        let pod = |pod| host.sandbox(&format!("burst-{}-{number}-{pod}", side.name));
        let pods: Vec<_> = (0..PODS).map(pod).collect();
        let mut chains: Vec<_> = (0..PODS).map(|pod| Chain::new(side, pod)).collect();
        let nobody = AtomicBool::new(false);
        thread::scope(|scope| {
            let idle = scope.spawn(|| others(&nobody));
            thread::park_timeout(Duration::from_secs(1));
            nobody.store(true, Ordering::Relaxed);
            note_others(side, idle.join().unwrap(), "nobody else");
        });
        for verb in ["ADD", "DEL"] {
            let done = AtomicBool::new(false);
            let (time, meanwhile) = thread::scope(|scope| {
                let others = scope.spawn(|| others(&done));
                let start = Instant::now();
                all(side, &pods, &mut chains, verb);
                let time = start.elapsed();
                done.store(true, Ordering::Relaxed);
                (time, others.join().unwrap())
            });
            side.note(&format!("{PODS} pods, {verb}"), time);
            note_others(side, meanwhile, verb);
        }
    });
    let title = format!(
        "{PODS} pods by {PROCESSES} processes, {ROUNDS} rounds in turns; and what others wait meanwhile"
    );
    report.times(&title, &sides);
}

fn all(side: &Side, pods: &[Sandbox], chains: &mut [Chain], verb: &str) {
    let next = AtomicUsize::new(0);
    let work: Vec<_> = pods.iter().zip(chains).map(std::sync::Mutex::new).collect();
    thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                while let Some(work) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (pod, chain) = &mut *work.lock().unwrap();
                    chain.walk(verb, |plugin, request| {
                        side.run(&Call::of(pod, plugin, verb), request).0
                    });
                }
            });
        }
    });
}

/// What others do again and again until `done`, and how long it takes them each time.
fn others(done: &AtomicBool) -> Vec<(&'static str, Duration)> {
    let mut times = Vec::new();
    while !done.load(Ordering::Relaxed) {
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
