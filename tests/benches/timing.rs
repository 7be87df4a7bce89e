//! Runs the executables of a directory and times each call.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io::ErrorKind::BrokenPipe;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::Sandbox;

/// A directory of plugins.
pub struct Side {
    pub name: &'static str,
    pub directory: PathBuf,
    pub times: Vec<(String, Times)>,
}

/// Variables that a runtime sets for a plugin.
pub struct Call<'a> {
    pub plugin: &'a str,
    pub verb: &'a str,
    pub container: &'a str,
    pub netns: &'a Path,
    pub args: &'a str,
}

impl<'a> Call<'a> {
    /// Creates a call for a sandbox.
    pub fn of(sandbox: &'a Sandbox, plugin: &'a str, verb: &'a str) -> Self {
        Self {
            plugin,
            verb,
            container: sandbox.name(),
            netns: sandbox.path(),
            args: "",
        }
    }

    /// Sets `CNI_ARGS`.
    pub fn with_args(self, args: &'a str) -> Self {
        Self { args, ..self }
    }
}

/// Runs `round` once on each side to warm the caches, then alternately for all rounds.
pub fn in_turns(sides: &mut [Side; 2], rounds: u32, mut round: impl FnMut(&mut Side, &str)) {
    for side in &mut *sides {
        round(side, "warm");
        side.forget();
    }
    for number in 0..rounds {
        for side in &mut *sides {
            round(side, &number.to_string());
            settle();
        }
        sides.reverse();
    }
    sides.sort_by_key(|side| side.name);
}

/// Waits until the kernel has freed deleted objects: it holds locks meanwhile, which would delay
/// the next measurement.
pub fn settle() {
    let end = Instant::now() + Duration::from_millis(60);
    while let Some(rest) = end.checked_duration_since(Instant::now()) {
        thread::park_timeout(rest);
    }
}

impl Side {
    pub fn new(name: &'static str, directory: &Path) -> Self {
        Self {
            name,
            directory: directory.to_owned(),
            times: Vec::new(),
        }
    }

    /// Returns whether it has this plugin.
    pub fn has(&self, plugin: &str) -> bool {
        self.directory.join(plugin).exists()
    }

    /// Makes a call, which must succeed, and returns its output. Records its time from start to
    /// exit.
    pub fn time(&mut self, label: &str, call: &Call<'_>, request: &Value) -> Vec<u8> {
        let (output, time) = self.run(call, request);
        self.note(label, time);
        output
    }

    /// Records a time.
    pub fn note(&mut self, label: &str, time: Duration) {
        match self.times.iter_mut().find(|(known, _)| known == label) {
            Some((_, times)) => times.0.push(time),
            None => self.times.push((label.to_owned(), Times(vec![time]))),
        }
    }

    /// Makes a call, which must succeed, and returns its output and time.
    pub fn run(&self, call: &Call<'_>, request: &Value) -> (Vec<u8>, Duration) {
        self.execute(
            Command::new(self.directory.join(call.plugin)),
            call,
            request,
        )
    }

    /// Makes a call, which must succeed, and returns its output and peak memory in KiB.
    pub fn peak_memory(&self, call: &Call<'_>, request: &Value) -> (Vec<u8>, u64) {
        let told = std::env::temp_dir().join(format!("peak-{}", std::process::id()));
        let mut time = Command::new("/usr/bin/time");
        time.args(["--format=%M", "--output"]).arg(&told);
        time.arg(self.directory.join(call.plugin));
        let (output, _) = self.execute(time, call, request);
        let peak = fs::read_to_string(&told).unwrap().trim().parse().unwrap();
        fs::remove_file(told).unwrap();
        (output, peak)
    }

    fn execute(
        &self,
        mut command: Command,
        call: &Call<'_>,
        request: &Value,
    ) -> (Vec<u8>, Duration) {
        self.tell(&mut command, call);
        let request = request.to_string();
        let mut output = Vec::new();
        let start = Instant::now();
        let child = command.spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        // A pipe holds more than a request; the plugin need not read it.
        let mut stdin = child.stdin.take().unwrap();
        let written = stdin.write_all(request.as_bytes());
        drop(stdin);
        assert!(written.is_ok() || written.is_err_and(|error| error.kind() == BrokenPipe));
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_to_end(&mut output).unwrap();
        let status = child.wait().unwrap();
        let time = start.elapsed();
        let printed = String::from_utf8_lossy(&output);
        let Call { plugin, verb, .. } = call;
        assert!(status.success(), "{} {plugin} {verb}: {printed}", self.name);
        (output, time)
    }

    /// Discards the times so far: bridges, directories and caches exist now.
    pub fn forget(&mut self) {
        self.times.clear();
    }

    fn tell(&self, command: &mut Command, call: &Call<'_>) {
        let variables = command.env_clear().env("CNI_COMMAND", call.verb);
        // The reference's portmap runs iptables.
        let variables = variables.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let variables = variables.env("CNI_PATH", &self.directory);
        let variables = variables.env("CNI_NETNS", call.netns);
        let variables = variables.env("CNI_IFNAME", "eth0");
        let variables = variables.env("CNI_ARGS", call.args);
        let variables = variables.env("CNI_CONTAINERID", call.container);
        let stdio = variables.stdin(Stdio::piped()).stdout(Stdio::piped());
        stdio.stderr(Stdio::null());
    }
}

/// Times of one operation, round by round.
pub struct Times(Vec<Duration>);

impl Times {
    /// Returns the milliseconds that `percent` of the rounds did not exceed.
    fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort();
        sorted[(sorted.len() - 1) * percent / 100].as_secs_f64() * 1000.0
    }

    pub fn median(&self) -> f64 {
        self.percentile(50)
    }

    /// Returns statistics in milliseconds.
    pub fn to_json(&self) -> Value {
        let [median, p95, min, max] = [50, 95, 0, 100].map(|percent| self.percentile(percent));
        let rounds = self.0.len();
        json!({"median": median, "p95": p95, "min": min, "max": max, "rounds": rounds})
    }
}

impl Display for Times {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [median, p95, min, max] = [50, 95, 0, 100].map(|percent| self.percentile(percent));
        write!(f, "{median:>9.2}{p95:>8.2}{min:>8.2}{max:>8.2} ")
    }
}
