//! Attachments that meet faults, one each, and what is left of them.
//!
//! Complaints are gathered, so that one run tells all that is wrong.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::faults::{Fault, Harm, Trace, strace};
use crate::place::Place as _;
use crate::{Host, Invocation, Network, Outcome, Sandbox, Snapshot};

/// A host on which the bridge is there already, and what came of the faults so far.
#[derive(Debug)]
pub struct Lab {
    host: Host,
    before: Snapshot,
    sandboxes: usize,
    tried: usize,
    failed: usize,
    killed: usize,
    complaints: Vec<String>,
}

/// Who meets the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// The plugin.
    Bridge,
    /// The host-local that it runs.
    Delegate,
}

/// What DEL is told of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Netns {
    /// Where it is.
    Named,
    /// Nothing: `CNI_NETNS` is not set.
    Absent,
}

/// With all that an attachment leaves in the kernel.
fn network(host: &Host) -> Network<'_> {
    host.bridge().with("ipMasq", true).with("macspoofchk", true)
}

impl Lab {
    /// Moves the calling thread onto a host of its own, as [`Host::new`] does.
    pub fn new() -> Self {
        let host = Host::new();
        let first = host.sandbox("first");
        network(&host).add(&first);
        network(&host).del(&first);
        Self {
            before: host.snapshot(),
            host,
            sandboxes: 0,
            tried: 0,
            failed: 0,
            killed: 0,
            complaints: Vec::new(),
        }
    }

    fn network(&self) -> Network<'_> {
        network(&self.host)
    }

    /// One more. All names are of one length, as are all messages that bear one.
    fn sandbox(&mut self) -> Sandbox {
        self.sandboxes += 1;
        self.host.sandbox(&format!("a{:03}", self.sandboxes))
    }

    fn file(&self) -> PathBuf {
        self.host.dir().join("trace")
    }

    /// All that an ADD without any fault calls.
    pub fn trace(&mut self) -> Trace {
        let a = self.sandbox();
        let trace = Trace::of(&self.network().on("ADD", &a), &self.file());
        self.network().del(&a);
        trace
    }

    /// All that a DEL without any fault calls.
    pub fn trace_of_del(&mut self, netns: Netns) -> Trace {
        let a = self.sandbox();
        self.network().add(&a);
        Trace::of(&self.del(&a, netns), &self.file())
    }

    fn del(&self, a: &Sandbox, netns: Netns) -> Invocation {
        let delete = self.network().on("DEL", a);
        match netns {
            Netns::Named => delete,
            Netns::Absent => delete.without("CNI_NETNS"),
        }
    }

    /// All that host-local calls in an ADD without any fault.
    pub fn trace_of_delegate(&mut self) -> Trace {
        let a = self.sandbox();
        self.trace_delegate(&strace(&self.file()));
        self.network().add(&a);
        self.network().del(&a);
        Trace::read(&self.file())
    }

    /// From now on an ADD of host-local runs under `strace`.
    fn trace_delegate(&self, strace: &[String]) {
        let plugin = self.host.plugin("host-local").command();
        let plugin = Path::new(plugin.get_program()).display();
        let strace = strace.join(" ");
        let body = format!("[ $CNI_COMMAND = ADD ] && exec {strace} {plugin}\nexec {plugin}");
        self.host.script("host-local", &body);
    }

    /// Lets each of `faults` happen to an ADD of its own.
    pub fn try_all(&mut self, faults: &[Fault], victim: Victim, netns: Netns) {
        for fault in faults {
            let a = self.sandbox();
            let outcome = self.add(fault, victim, &a);
            let ended = self.judge_add(&outcome, &a, fault);
            let left = self.expect_deleted(&self.del(&a, netns), &a);
            self.note(fault, ended.and(left));
        }
    }

    /// Lets each of `faults` happen to a DEL of its own.
    pub fn try_all_on_del(&mut self, faults: &[Fault], netns: Netns) {
        for fault in faults {
            let a = self.sandbox();
            self.network().add(&a);
            let delete = self.del(&a, netns);
            let outcome = fault.strikes(&delete, &self.file()).run();
            let ended = match outcome.status.code() {
                Some(0) => self
                    .left(&a)
                    .map_err(|left| format!("DEL succeeded and left {left}")),
                _ => self.expect_error(&outcome),
            };
            let left = self.expect_deleted(&delete, &a);
            self.note(fault, ended.and(left));
        }
    }

    /// There is no bridge and no table again, and the host does not forward.
    pub fn cool_down(&mut self) {
        if self.host.has_link("cni0") {
            self.host.ip("link delete cni0");
        }
        self.host.run("nft", &["flush", "ruleset"]);
        for key in ["ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"] {
            self.host.set_sysctl(&format!("net/{key}"), "0");
        }
        self.before = self.host.snapshot();
    }

    /// Lets each of `faults` happen to an ADD that has the bridge to make; the next ADD has to
    /// work, and to set up what is missing.
    pub fn try_all_cold(&mut self, faults: &[Fault]) {
        for fault in faults {
            self.cool_down();
            let a = self.sandbox();
            let outcome = self.add(fault, Victim::Bridge, &a);
            let verdict = match outcome.status.code() {
                Some(1) => self.expect_error(&outcome),
                None | Some(137) => {
                    self.killed += 1;
                    Ok(())
                }
                _ => self.judge_add(&outcome, &a, fault),
            };
            self.network().del(&a);
            let next = self.expect_next_add();
            self.note(fault, verdict.and(next));
        }
    }

    /// Runs an ADD. Every process that it starts has its standard error, and has ended when
    /// this returns.
    fn add(&self, fault: &Fault, victim: Victim, a: &Sandbox) -> Outcome {
        let add = self.network().on("ADD", a);
        match victim {
            Victim::Bridge => fault.strikes(&add, &self.file()).run(),
            Victim::Delegate => {
                self.trace_delegate(&fault.strace(&self.file()));
                add.run()
            }
        }
    }

    fn note(&mut self, fault: &Fault, verdict: Result<(), String>) {
        self.tried += 1;
        if let Err(complaint) = verdict {
            self.complaints.push(format!("{complaint}\n    by {fault}"));
            // What is left is told once.
            self.before = self.host.snapshot();
        }
    }

    /// Says what is wrong with the end of an ADD.
    fn judge_add(&mut self, outcome: &Outcome, a: &Sandbox, fault: &Fault) -> Result<(), String> {
        match outcome.status.code() {
            Some(0) => {
                let check = self.network().check(a, &outcome.ok()).run();
                if check.status.success() {
                    return Ok(());
                }
                Err(format!("ADD succeeded, but CHECK says {}", check.stdout))
            }
            // timeout(1) ends as what it runs does, or tells it by 137.
            None | Some(137) if fault.harm() == Harm::Kill => {
                self.killed += 1;
                Ok(())
            }
            _ => {
                self.expect_error(outcome)?;
                let said = (outcome.stdout.trim(), outcome.stderr.trim());
                let left = self.left(a);
                left.map_err(|left| format!("ADD failed and left {left}; it said {said:?}"))
            }
        }
    }

    /// It has failed, and said so.
    fn expect_error(&mut self, outcome: &Outcome) -> Result<(), String> {
        self.failed += 1;
        let object = serde_json::from_str::<Value>(&outcome.stdout);
        match object {
            Ok(object) if object["code"].is_u64() => Ok(()),
            _ => Err(format!("no error object: {outcome:?}")),
        }
    }

    fn expect_deleted(&self, delete: &Invocation, a: &Sandbox) -> Result<(), String> {
        let outcome = delete.run();
        if !outcome.status.success() {
            return Err(format!("DEL fails: {}", outcome.stdout));
        }
        let left = self.left(a);
        left.map_err(|left| format!("after DEL there is {left}"))
    }

    /// An ADD of another sandbox finds a bridge and a host that work, or makes them so.
    fn expect_next_add(&mut self) -> Result<(), String> {
        let b = self.sandbox();
        let outcome = self.network().on("ADD", &b).run();
        let works = outcome.status.success() && b.pings("10.1.0.1") && b.pings("fd00:1::1");
        self.network().del(&b);
        let forwards = ["ipv4/ip_forward", "ipv6/conf/all/forwarding"]
            .iter()
            .all(|key| self.host.sysctl(&format!("net/{key}")).as_deref() == Some("1"));
        let accept_ra = self.host.sysctl("net/ipv6/conf/cni0/accept_ra");
        let links = self.host.links();
        if works && forwards && accept_ra.as_deref() == Some("0") && links == ["cni0", "lo"] {
            return Ok(());
        }
        Err(format!(
            "the next ADD: {outcome:?}, links {links:?}, forwarding {forwards}, accept_ra {accept_ra:?}"
        ))
    }

    /// An error that says what is there and was not before.
    fn left(&self, a: &Sandbox) -> Result<(), String> {
        let mut left = self.host.snapshot().differences(&self.before);
        let links = a.links();
        if links != ["lo"] {
            left.push(format!("in the sandbox {links:?}"));
        }
        match left.as_slice() {
            [] => Ok(()),
            _ => Err(left.join(", ")),
        }
    }

    /// Nothing was wrong, at least so many faults were tried, and at least so many of the
    /// attempts did not succeed.
    #[track_caller]
    pub fn finish(self, tried: usize, unsuccessful: usize) {
        let Self { complaints, .. } = &self;
        let count = format!(
            "{} faults tried: {} runs failed, {} were killed",
            self.tried, self.failed, self.killed
        );
        println!("{count}");
        let wrong = complaints.len();
        assert!(
            wrong == 0,
            "{count}, {wrong} wrong:\n{}",
            complaints.join("\n")
        );
        assert!(
            self.tried >= tried && self.failed + self.killed >= unsuccessful,
            "{count}"
        );
        let a = self.host.sandbox("last");
        fs::remove_file(self.host.dir().join("plugins/host-local")).ok();
        self.network().add(&a);
        assert!(a.pings("10.1.0.1") && a.pings("fd00:1::1"), "{count}");
    }
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}
