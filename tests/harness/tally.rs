//! Counts trials and their outcomes.
//!
//! Each test tries a sample of its faults. The variable `TORTURE` is the size of the sample, or `all`.
//! `TORTURE_SEED` chooses the sample. Each test prints a line and appends it to the file in `TORTURE_REPORT`. A
//! line has words separated by tabs, which `scripts/torture.sh` formats as a table, or is a
//! sentence to print below the table.

use std::fs::OpenOptions;
use std::io::Write as _;

/// How a run with a fault ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// As without a fault.
    Succeeded,
    /// With an error object.
    Failed,
    /// By the injected signal.
    Killed,
    /// By timeout(1).
    Hung,
}

/// Counts so far. All complaints are collected, so one run reports everything.
#[derive(Debug)]
pub struct Tally {
    /// Subject, verb and attack.
    title: [String; 3],
    points: usize,
    tried: usize,
    failed: usize,
    killed: usize,
    complaints: Vec<String>,
}

impl Tally {
    /// Creates an empty tally.
    pub fn new(title: [&str; 3]) -> Self {
        Self {
            title: title.map(str::to_owned),
            points: 0,
            tried: 0,
            failed: 0,
            killed: 0,
            complaints: Vec::new(),
        }
    }

    /// Announces this many more trials, without sampling.
    pub fn plan(&mut self, trials: usize) {
        self.points += trials;
    }

    /// Returns the trials to run, in their order.
    pub fn choose<T>(&mut self, mut trials: Vec<T>) -> Vec<T> {
        self.points += trials.len();
        let size = sample().unwrap_or(usize::MAX);
        let mut random = Random::new(seed());
        while trials.len() > size {
            trials.remove(random.below(trials.len()));
        }
        trials
    }

    /// Counts a trial and returns whether it failed its check.
    pub fn note(&mut self, ended: Option<Ended>, verdict: Result<(), String>) -> bool {
        self.tried += 1;
        match ended {
            Some(Ended::Failed) => self.failed += 1,
            Some(Ended::Killed) => self.killed += 1,
            Some(Ended::Succeeded | Ended::Hung) | None => {}
        }
        let complaint = verdict.err();
        let is_wrong = complaint.is_some();
        self.complaints.extend(complaint);
        is_wrong
    }

    /// Prints the tally. Fails if a check failed, if there were fewer than `points` faults, or if
    /// fewer than `of_ten` of ten trials failed or were killed. In a sample, a third of these
    /// suffices: the number of faults differs a little from run to run, so chance selects them. A
    /// sample below the default is too small to say.
    #[track_caller]
    pub fn finish(self, points: usize, of_ten: usize) {
        let Self {
            title, complaints, ..
        } = &self;
        let numbers = [self.points, self.tried, self.failed, self.killed];
        let counted = numbers.map(|number| number.to_string()).join("\t");
        let wrong = complaints.len();
        report(&format!("{}\t{counted}\t{wrong}", title.join("\t")));
        let [subject, verb, attack] = title;
        let count = format!(
            "{subject}, {verb}, {attack}: {} of {} faults tried: {} runs failed, {} were killed",
            self.tried, self.points, self.failed, self.killed
        );
        println!("{count}, {wrong} wrong; seed {}", seed());
        assert!(
            wrong == 0,
            "{count}, {wrong} wrong:\n{}",
            complaints.join("\n")
        );
        assert!(self.points >= points, "{count}");
        let factor = match sample() {
            None => 1,
            Some(SAMPLE..) => 3,
            Some(_) => return,
        };
        let unsuccessful = factor * (self.failed + self.killed);
        assert!(10 * unsuccessful >= of_ten * self.tried, "{count}");
    }
}

/// Pseudo-random numbers, the same for the same seed (`SplitMix64`).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `end`, which must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let number = (mixed ^ (mixed >> 31)) % u64::try_from(end).unwrap();
        usize::try_from(number).unwrap()
    }
}

/// Returns how many faults a test tries, or none if it tries all of them, however long it takes.
pub fn sample() -> Option<usize> {
    match std::env::var("TORTURE").as_deref() {
        Ok("all") => None,
        Ok(size) => Some(size.parse().expect("TORTURE is a number or `all`")),
        Err(_) => Some(SAMPLE),
    }
}

/// Returns `TORTURE_SEED`, or a fixed number.
pub fn seed() -> u64 {
    let asked = std::env::var("TORTURE_SEED").ok();
    asked.map_or(1, |seed| seed.parse().expect("TORTURE_SEED is a number"))
}

/// Prints a sentence, and appends it to the report.
pub fn remark(sentence: &str) {
    println!("{sentence}");
    report(&format!("# {sentence}"));
}

/// Appends `line` to the report, if one is configured.
fn report(line: &str) {
    let Some(path) = std::env::var_os("TORTURE_REPORT") else {
        return;
    };
    // Concurrent tests append whole lines.
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Default size of the sample; a trial takes about a third of a second.
const SAMPLE: usize = 24;
