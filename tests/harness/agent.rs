//! A running `cni-agent`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::{DEADLINE, Host, Invocation, eventually};

/// A `cni-agent` that runs until this is dropped. Its networks are those of [`crate::Tool`].
#[derive(Debug)]
pub struct Agent {
    child: Child,
    /// The agent itself; the child, unless that is a program that started it.
    main: u32,
    log: PathBuf,
}

impl Agent {
    /// Starts it with these sections.
    pub fn start(host: &Host, sections: &Value) -> Self {
        Self::spawn(host, &Self::run(host, sections))
    }

    /// Starts this run.
    pub fn spawn(host: &Host, run: &Invocation) -> Self {
        Self::spawn_in(host.dir(), run)
    }

    /// Starts this run, with its log in `dir`.
    pub fn spawn_in(dir: &Path, run: &Invocation) -> Self {
        let log = dir.join("agent.log");
        let mut command = run.command();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(&log).unwrap());
        let child = command.spawn().unwrap();
        let main = child.id();
        Self { child, main, log }
    }

    /// Starts it as a container does: as process 1 of a pid namespace, so that all plugins end with
    /// it.
    pub fn contain(host: &Host, sections: &Value) -> Self {
        let unshare = ["unshare", "--pid", "--fork", "--kill-child"].map(str::to_owned);
        let mut agent = Self::spawn(host, &Self::run(host, sections).under(&unshare));
        let children = format!("/proc/{0}/task/{0}/children", agent.main);
        let main = || fs::read_to_string(&children).unwrap().trim().parse().ok();
        assert!(eventually(|| main().is_some()));
        agent.main = main().unwrap();
        agent
    }

    /// Kills it, and all plugins if it is in a pid namespace, and waits for their end.
    pub fn kill(self, host: &Host) {
        drop(self);
        assert!(eventually(|| host.processes().is_empty()));
    }

    /// Returns a run with these sections, for other arguments.
    pub fn run(host: &Host, sections: &Value) -> Invocation {
        Self::run_in(host, host.dir(), sections)
    }

    /// Returns a run with these sections, whose configuration and networks are in `dir`.
    pub fn run_in(host: &Host, dir: &Path, sections: &Value) -> Invocation {
        let mut config = sections.clone();
        let own = host.search_path();
        config["runtime"] = json!({
            "confDir": dir.join("net.d"),
            "binDirs": own.split(':').collect::<Vec<_>>(),
        });
        let file = dir.join("agent.json");
        fs::write(&file, config.to_string()).unwrap();
        host.plugin("cni-agent").argument("--config").argument(file)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Returns what it wrote to standard error.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until it has written `text`: twice as long as for other events, because the agent may
    /// wait for 5 s itself before it gives up a request.
    #[track_caller]
    pub fn says(&self, text: &str) {
        let is_said = (0..2).any(|_| eventually(|| self.log().contains(text)));
        assert!(is_said, "{text:?}: {}", self.log());
    }

    /// Waits until it receives signals.
    #[track_caller]
    pub fn is_up(&self) {
        let status = format!("/proc/{}/status", self.main);
        let catches = |signal: Signal| {
            let status = fs::read_to_string(&status).unwrap();
            let mask = status.lines().find_map(|it| it.strip_prefix("SigCgt:"));
            let mask = u64::from_str_radix(mask.unwrap().trim(), 16).unwrap();
            mask & 1 << (signal as i32 - 1) != 0
        };
        assert!(eventually(|| catches(Signal::SIGHUP)), "{}", self.log());
    }

    /// Returns the peak of its resident memory in KiB.
    pub fn peak(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.main)).unwrap();
        let peak = status.lines().find_map(|it| it.strip_prefix("VmHWM:"));
        let number = peak.unwrap().trim().trim_end_matches(" kB");
        number.parse().unwrap()
    }

    /// Ends it by SIGTERM.
    #[track_caller]
    pub fn end(mut self) {
        self.signal(Signal::SIGTERM);
        let status = ended(&mut self.child);
        let is_success = status.is_some_and(|it| it.success());
        assert!(is_success, "{status:?}: {}", self.log());
    }

    /// Returns its process ID.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.main.try_into().unwrap())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // They may have ended by themselves. A program that has just started the agent may not yet
        // have asked the kernel to kill it with the program.
        if self.main != self.child.id() {
            kill(self.pid(), Signal::SIGKILL).ok();
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Waits for the end of a program that received SIGTERM. Returns `None` if it still runs after
/// [`DEADLINE`]: what hangs in a test hangs longer.
pub fn ended(child: &mut Child) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        let status = child.try_wait().unwrap();
        if status.is_some() || start.elapsed() > DEADLINE {
            return status;
        }
        thread::park_timeout(Duration::from_millis(5));
    }
}
