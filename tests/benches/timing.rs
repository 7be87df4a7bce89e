//! A directory of plugins, how its executables are run, and how long each call took.

use std::fmt::{self, Display, Formatter};
use std::io::ErrorKind::BrokenPipe;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// One directory of plugins.
pub struct Side {
    pub name: &'static str,
    directory: PathBuf,
    times: Vec<(String, Times)>,
}

/// What a runtime tells a plugin by variables.
pub struct Call<'a> {
    pub plugin: &'a str,
    pub verb: &'a str,
    pub container: &'a str,
    pub netns: &'a Path,
}

impl Side {
    pub fn new(name: &'static str, directory: &Path) -> Self {
        Self {
            name,
            directory: directory.to_owned(),
            times: Vec::new(),
        }
    }

    /// Makes the call, which has to succeed, and hands back what it printed; notes how long
    /// it took from its start to its end.
    pub fn time(&mut self, label: &str, call: &Call<'_>, request: &Value) -> Vec<u8> {
        let (output, time) = self.run(call, request);
        match self.times.iter_mut().find(|(known, _)| known == label) {
            Some((_, times)) => times.0.push(time),
            None => self.times.push((label.to_owned(), Times(vec![time]))),
        }
        output
    }

    /// Makes the call, which has to succeed; what it printed, and how long it took.
    pub fn run(&self, call: &Call<'_>, request: &Value) -> (Vec<u8>, Duration) {
        let mut command = self.command(call);
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
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_to_end(&mut output).unwrap();
        let status = child.wait().unwrap();
        let time = start.elapsed();
        let printed = String::from_utf8_lossy(&output);
        let Call { plugin, verb, .. } = call;
        assert!(status.success(), "{} {plugin} {verb}: {printed}", self.name);
        (output, time)
    }

    /// Forgets what was timed so far: bridges, directories and caches are there now.
    pub fn forget(&mut self) {
        self.times.clear();
    }

    fn command(&self, call: &Call<'_>) -> Command {
        let mut command = Command::new(self.directory.join(call.plugin));
        let variables = command.env_clear().env("CNI_COMMAND", call.verb);
        // The reference's portmap runs iptables.
        let variables = variables.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let variables = variables.env("CNI_PATH", &self.directory);
        let variables = variables.env("CNI_NETNS", call.netns);
        let variables = variables.env("CNI_IFNAME", "eth0");
        let variables = variables.env("CNI_CONTAINERID", call.container);
        let stdio = variables.stdin(Stdio::piped()).stdout(Stdio::piped());
        stdio.stderr(Stdio::null());
        command
    }
}

/// Prints what was timed on both sides, the first one's median being the measure.
pub fn print_table(title: &str, sides: &[Side; 2]) {
    let [ours, reference] = sides;
    println!("\n{title}, milliseconds from start to exit\n");
    println!(
        "{:24}{:^34}{:^34}{:>8}",
        "", ours.name, reference.name, "median"
    );
    let columns = "   median     p95     min     max ";
    println!("{:24}{columns}{columns}{:>8}", "", "ratio");
    for (label, ours) in &ours.times {
        let mut times = reference.times.iter();
        match times.find(|(other, _)| other == label) {
            Some((_, reference)) => {
                let ratio = reference.median() / ours.median();
                println!("{label:24}{ours}{reference}{ratio:>7.1}x");
            }
            None => println!("{label:24}{ours}{:>9}", "-"),
        }
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
