//! How long a runtime waits for a plugin: from its start to its end, ours beside the
//! reference, in turns, so that whatever else the machine does hits both.
//!
//! `scripts/bench.sh` builds the executables and runs this.

use std::fmt::{self, Display, Formatter};
use std::io::ErrorKind::BrokenPipe;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::{Host, Sandbox};

fn main() {
    let options = Options::of(std::env::args().skip(1));
    let host = Host::new();
    let mut suites = [
        Suite::new("ours", &options.ours, 200),
        Suite::new("reference", &options.reference, 201),
    ];
    // Bridges, directories and caches are there before the clock runs.
    for suite in &mut suites {
        suite.round(&host, "warm");
        suite.times.clear();
    }
    for round in 0..options.rounds {
        for suite in &mut suites {
            suite.round(&host, &round.to_string());
        }
        suites.reverse();
    }
    suites.sort_by_key(|suite| suite.name);
    let [ours, reference] = &suites;
    println!(
        "\n{} rounds in turns, milliseconds from start to exit\n",
        options.rounds
    );
    println!(
        "{:14}{:^34}{:^34}{:>7}",
        "", ours.name, reference.name, "median"
    );
    let columns = "   median     p95     min     max ";
    println!("{:14}{columns}{columns}{:>7}", "", "ratio");
    for (ours, reference) in ours.times.iter().zip(&reference.times) {
        let ratio = reference.1.median() / ours.1.median();
        println!("{:14}{}{}{ratio:>6.2}x", ours.0, ours.1, reference.1);
    }
}

struct Options {
    ours: PathBuf,
    reference: PathBuf,
    rounds: u32,
}

impl Options {
    /// `--ours DIR --reference DIR --rounds N`; cargo adds `--bench`.
    fn of(arguments: impl Iterator<Item = String>) -> Self {
        let mut arguments = arguments.filter(|argument| argument != "--bench");
        let mut options = Self {
            ours: "/opt/cni/bin".into(),
            reference: tests::REFERENCE.into(),
            rounds: 200,
        };
        while let Some(option) = arguments.next() {
            let value = arguments
                .next()
                .unwrap_or_else(|| panic!("{option} needs a value"));
            match option.as_str() {
                "--ours" => options.ours = value.into(),
                "--reference" => options.reference = value.into(),
                "--rounds" => options.rounds = value.parse().expect("--rounds is a number"),
                _ => panic!("unknown option {option}"),
            }
        }
        options
    }
}

/// One directory of plugins, with a bridge, addresses and leases of its own.
struct Suite {
    name: &'static str,
    directory: PathBuf,
    bridge: Value,
    times: Vec<(&'static str, Times)>,
}

impl Suite {
    fn new(name: &'static str, directory: &Path, subnet: u8) -> Self {
        let bridge = json!({
            "cniVersion": "1.0.0",
            "name": name,
            "type": "bridge",
            "bridge": format!("br-{name}"),
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "dataDir": format!("/run/leases-{name}"),
                "ranges": [[{"subnet": format!("10.{subnet}.0.0/16")}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        });
        let directory = directory.to_owned();
        Self {
            name,
            directory,
            bridge,
            times: Vec::new(),
        }
    }

    /// Every operation once, on a sandbox that nothing was done to.
    fn round(&mut self, host: &Host, round: &str) {
        let sandbox = host.sandbox(&format!("{}-{round}", self.name));
        let command = |plugin, verb| self.command(plugin, verb, &sandbox);
        let version = command("bridge", "VERSION");
        let [add_lo, add, del] = [("loopback", "ADD"), ("bridge", "ADD"), ("bridge", "DEL")]
            .map(|(plugin, verb)| command(plugin, verb));
        let mut bridge = self.bridge.clone();
        self.time("VERSION", version, &json!({"cniVersion": "1.0.0"}));
        let lo = json!({"cniVersion": "1.0.0", "name": "lo", "type": "loopback"});
        self.time("loopback ADD", add_lo, &lo);
        let result = self.time("bridge ADD", add, &bridge);
        bridge["prevResult"] = serde_json::from_slice(&result).unwrap();
        self.time("bridge DEL", del, &bridge);
    }

    fn command(&self, plugin: &str, verb: &str, sandbox: &Sandbox) -> Command {
        let mut command = Command::new(self.directory.join(plugin));
        command.env_clear();
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_PATH", &self.directory);
        command
            .env("CNI_NETNS", sandbox.path())
            .env("CNI_IFNAME", "eth0");
        command.env("CNI_CONTAINERID", sandbox.name());
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
    }

    /// Runs `command`, which has to succeed, and hands back what it printed.
    fn time(&mut self, label: &'static str, mut command: Command, request: &Value) -> Vec<u8> {
        let request = request.to_string();
        let mut output = Vec::new();
        let start = Instant::now();
        let child = command.spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        // A pipe holds more than a request has. Nobody has to read it.
        let mut stdin = child.stdin.take().unwrap();
        let written = stdin.write_all(request.as_bytes());
        drop(stdin);
        assert!(written.is_ok() || written.is_err_and(|error| error.kind() == BrokenPipe));
        child
            .stdout
            .take()
            .unwrap()
            .read_to_end(&mut output)
            .unwrap();
        let status = child.wait().unwrap();
        let time = start.elapsed();
        let printed = String::from_utf8_lossy(&output);
        assert!(status.success(), "{} {label}: {printed}", self.name);
        match self.times.iter_mut().find(|(known, _)| *known == label) {
            Some((_, times)) => times.0.push(time),
            None => self.times.push((label, Times(vec![time]))),
        }
        output
    }
}

/// How long one operation took, round by round.
struct Times(Vec<Duration>);

impl Times {
    /// The time, in milliseconds, that `percent` of the rounds did not exceed.
    fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort();
        sorted[(sorted.len() - 1) * percent / 100].as_secs_f64() * 1000.0
    }

    fn median(&self) -> f64 {
        self.percentile(50)
    }
}

impl Display for Times {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [median, p95, min, max] = [50, 95, 0, 100].map(|percent| self.percentile(percent));
        write!(f, "{median:>9.2}{p95:>8.2}{min:>8.2}{max:>8.2} ")
    }
}
