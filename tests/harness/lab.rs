//! Injects faults into one attachment each, and checks what is left.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::chain::{Chain, Removal};
use crate::faults::{Fault, Trace, strace};
use crate::place::Place as _;
use crate::points::Attack;
use crate::tally::{Ended, Tally};
use crate::traffic::tcp_by_port;
use crate::{Host, Invocation, Machine, Outcome, Sandbox, Snapshot, eventually};

/// The plugins of a torture test.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    /// Name for the table.
    pub name: &'static str,
    /// The plugins of an attachment, in order.
    pub chain: &'static [&'static str],
    /// The plugins among them, or `host-local`, that get faults, one at a time.
    pub victims: &'static [&'static str],
}

/// The operation during which the fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// An ADD on a host with earlier attachments.
    Add,
    /// An ADD on a host without bridge, table and forwarding.
    FirstAdd,
    /// An ADD that is repeated if it fails, without a removal before.
    AddAgain,
    /// A removal, and the next one that repairs it.
    Removal,
}

/// A host that had an attachment before.
#[derive(Debug)]
pub struct Lab {
    host: Host,
    subject: Subject,
    /// Snapshot without attachments, which every trial has to restore.
    before: Snapshot,
    sandboxes: usize,
}

/// A fault, the plugin that gets it, and the way of removal.
#[derive(Debug)]
struct Trial {
    fault: Fault,
    victim: &'static str,
    removal: Removal,
}

/// Tries all faults of `attack` on `subject` during `moment`, or a sample. At least `points` faults
/// must exist, and `of_ten` of ten trials must fail or be killed.
#[track_caller]
pub fn torture(
    subject: Subject,
    (moment, attack): (Moment, Attack),
    (points, of_ten): (usize, usize),
) {
    let mut tally = Tally::new([subject.name, moment.name(), attack.name()]);
    let mut lab = Lab::new(subject);
    let trials = lab.trials(moment, attack);
    for trial in tally.choose(trials) {
        let (ended, verdict) = match lab.attempt_again(moment, &trial) {
            Ok((ended, verdict)) => (Some(ended), verdict),
            Err(complaint) => (None, Err(complaint)),
        };
        let told = |complaint| {
            format!(
                "{complaint}\n    {:?} by {} in {}",
                trial.removal, trial.fault, trial.victim
            )
        };
        if tally.note(ended, verdict.map_err(told)) {
            // The next trials do not report the same leftovers again.
            lab.before = lab.host.snapshot();
        }
    }
    let works = lab.works();
    tally.finish(points, of_ten);
    works.unwrap();
}

impl Moment {
    fn name(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::FirstAdd => "first ADD",
            Self::AddAgain => "repeated ADD",
            Self::Removal => "DEL, GC",
        }
    }
}

impl Lab {
    /// Moves the calling thread to a new host, as [`Host::new`] does.
    fn new(subject: Subject) -> Self {
        let host = Host::new();
        let mut lab = Self {
            before: host.snapshot(),
            host,
            subject,
            sandboxes: 0,
        };
        lab.works().unwrap();
        lab.before = lab.host.snapshot();
        lab
    }

    fn chain(&self) -> Chain<'_> {
        Chain::new(&self.host, self.subject.chain)
    }

    /// Creates the next sandbox. Its name has a fixed length, so messages with the name have one,
    /// too.
    fn sandbox(&mut self) -> Sandbox {
        self.sandboxes += 1;
        self.host.sandbox(&format!("a{:05}", self.sandboxes))
    }

    fn file(&self) -> PathBuf {
        self.host.dir().join("trace")
    }

    /// Returns the victim's index in the chain; for a delegate, the index of its caller.
    fn place(&self, victim: &str) -> usize {
        self.chain().position(victim).unwrap_or(0)
    }

    /// Returns every fault at every point of the victims' runs.
    fn trials(&mut self, moment: Moment, attack: Attack) -> Vec<Trial> {
        let mut trials = Vec::new();
        for victim in self.subject.victims {
            let of = |removal, fault| Trial {
                fault,
                victim,
                removal,
            };
            if moment == Moment::Removal {
                for removal in Removal::ALL {
                    let faults = attack.faults(&self.trace_of_removal(victim, removal, attack));
                    trials.extend(faults.into_iter().map(|fault| of(removal, fault)));
                }
                continue;
            }
            // On a busy machine, an ADD waits longer and makes more calls. A fault at a call that a
            // trial does not make would not happen, so the shortest of three runs counts.
            let runs = (0..3).map(|_| attack.faults(&self.trace_of_add(victim, moment)));
            let faults = runs.min_by_key(Vec::len).unwrap_or_default().into_iter();
            if attack == Attack::Kill && moment == Moment::Add {
                let each = faults.flat_map(|fault| Removal::ALL.map(|it| of(it, fault.clone())));
                trials.extend(each);
            } else {
                let removals = Removal::ALL.into_iter().cycle();
                trials.extend(removals.zip(faults).map(|(it, fault)| of(it, fault)));
            }
        }
        trials
    }

    /// Records the calls of the victim's ADD without a fault.
    fn trace_of_add(&mut self, victim: &str, moment: Moment) -> Trace {
        let a = self.sandbox();
        if moment == Moment::FirstAdd {
            self.cool_down();
        }
        let (chain, place) = (self.chain(), self.place(victim));
        let before = chain.add_first(place, &a).unwrap();
        let add = chain.call(place, "ADD", (&a, &before));
        let result = self.strike(victim, &add, &strace(&self.file())).ok();
        chain.remove(Removal::Del, (&a, &result)).unwrap();
        a.remove();
        Trace::read(&self.file())
    }

    /// Records the calls of the victim's removal without a fault.
    fn trace_of_removal(&mut self, victim: &str, removal: Removal, attack: Attack) -> Trace {
        let a = self.sandbox();
        let chain = self.chain();
        let result = chain.add(&a).unwrap();
        for place in chain.order(removal) {
            let run = chain.removal(place, removal, (&a, &result));
            if place == self.place(victim) {
                self.strike(victim, &run, &strace(&self.file())).ok();
            } else {
                run.ok();
            }
        }
        a.remove();
        let trace = Trace::read(&self.file());
        match attack {
            // The number of events about the link's end varies, but a fault in an answer needs its
            // number and length.
            Attack::Refusal => trace.without_after("/proc/self/exe", "recvfrom"),
            _ => trace,
        }
    }

    /// Runs `call` with the victim under `strace`, which is the plugin or its delegate. All
    /// processes that it starts share its standard error and have ended when this returns, except
    /// for detached ones.
    fn strike(&self, victim: &str, call: &Invocation, strace: &[String]) -> Outcome {
        if self.chain().position(victim).is_some() {
            return call.clone().under(strace).run();
        }
        let plugin = self.host.plugin(victim).command();
        let plugin = PathBuf::from(plugin.get_program());
        let (strace, plugin) = (strace.join(" "), plugin.display());
        let verb = call.variable("CNI_COMMAND");
        let body = format!("[ $CNI_COMMAND = {verb} ] && exec {strace} {plugin}\nexec {plugin}");
        self.host.script(victim, &body);
        let outcome = call.run();
        fs::remove_file(self.host.dir().join("plugins").join(victim)).unwrap();
        outcome
    }

    /// Tries a fault, and repeats it while the run hangs, up to four times. A run may send other
    /// requests than the recorded one. Then the error replaces another answer, and the process hangs.
    fn attempt_again(&mut self, moment: Moment, trial: &Trial) -> Result<Verdict, String> {
        for _ in 0..5 {
            let a = self.sandbox();
            let attempted = self.attempt(moment, trial, &a);
            a.remove();
            if !matches!(attempted, Ok((Ended::Hung, _))) {
                return attempted;
            }
        }
        Err("it hangs".to_owned())
    }

    fn attempt(&mut self, moment: Moment, trial: &Trial, a: &Sandbox) -> Result<Verdict, String> {
        match moment {
            Moment::Add => self.attempt_add(trial, a),
            Moment::FirstAdd => self.attempt_first_add(trial, a),
            Moment::AddAgain => self.attempt_add_again(trial, a),
            Moment::Removal => self.attempt_removal(trial, a),
        }
    }

    fn attempt_add(&self, trial: &Trial, a: &Sandbox) -> Result<Verdict, String> {
        let (chain, place) = (self.chain(), self.place(trial.victim));
        let before = chain.add_first(place, a)?;
        let there = (self.host.snapshot(), a.links());
        let (ended, result, verdict) = self.add(trial, (a, before))?;
        let left = match ended {
            Ended::Failed => self.left(a, &there),
            Ended::Succeeded | Ended::Killed | Ended::Hung => Ok(()),
        };
        let left = left.map_err(|left| format!("ADD failed and left {left}"));
        let removed = chain.remove(trial.removal, (a, &result));
        let verdict = verdict.and(left).and(removed);
        Ok((ended, verdict.and(self.expect_nothing(trial, a))))
    }

    /// Tries a fault in a first ADD. Shared objects may exist or not, but the next ADD must work.
    fn attempt_first_add(&mut self, trial: &Trial, a: &Sandbox) -> Result<Verdict, String> {
        self.cool_down();
        let chain = self.chain();
        let before = chain.add_first(self.place(trial.victim), a)?;
        let (ended, result, verdict) = self.add(trial, (a, before))?;
        let removed = chain.remove(trial.removal, (a, &result));
        let verdict = verdict.and(removed).and(self.works());
        Ok((ended, verdict.and(self.expect_nothing(trial, a))))
    }

    /// Tries a fault in an ADD. The same ADD must succeed after a failure, as must the ADD of the
    /// plugins after it.
    fn attempt_add_again(&self, trial: &Trial, a: &Sandbox) -> Result<Verdict, String> {
        let (chain, place) = (self.chain(), self.place(trial.victim));
        let before = chain.add_first(place, a)?;
        let (ended, reported, verdict) = self.add(trial, (a, before))?;
        let next = match ended {
            Ended::Succeeded => place + 1,
            Ended::Failed => place,
            Ended::Killed | Ended::Hung => return Ok((ended, Ok(()))),
        };
        let result = chain.add_from(next, (a, &reported))?;
        let checked = chain.check_first(chain.len(), (a, &result));
        let removed = chain.remove(trial.removal, (a, &result));
        let verdict = verdict.and(checked).and(removed);
        Ok((ended, verdict.and(self.expect_nothing(trial, a))))
    }

    /// Runs ADD of the victim's plugin with the fault. Returns the outcome, the runtime's
    /// knowledge, and whether CHECK accepts a successful ADD.
    fn add(
        &self,
        trial: &Trial,
        (a, before): (&Sandbox, Value),
    ) -> Result<(Ended, Value, Result<(), String>), String> {
        let (chain, place) = (self.chain(), self.place(trial.victim));
        let add = chain.call(place, "ADD", (a, &before));
        let outcome = self.strike(trial.victim, &add, &trial.fault.strace(&self.file()));
        let ended = trial.fault.harm().ended(&outcome)?;
        if ended != Ended::Succeeded {
            return Ok((ended, before, Ok(())));
        }
        let result = outcome.ok();
        let checked = chain.check_first(place + 1, (a, &result));
        Ok((ended, result, checked))
    }

    fn attempt_removal(&self, trial: &Trial, a: &Sandbox) -> Result<Verdict, String> {
        let (chain, victim) = (self.chain(), self.place(trial.victim));
        let result = chain.add(a)?;
        let mut ended_as = Ended::Succeeded;
        for place in chain.order(trial.removal) {
            let run = chain.removal(place, trial.removal, (a, &result));
            if place != victim {
                run.run().ok();
                continue;
            }
            let outcome = self.strike(trial.victim, &run, &trial.fault.strace(&self.file()));
            ended_as = trial.fault.harm().ended(&outcome)?;
            if ended_as != Ended::Succeeded {
                break;
            }
        }
        let removed = if ended_as == Ended::Succeeded {
            Ok(())
        } else {
            chain.remove(trial.removal, (a, &result))
        };
        Ok((ended_as, removed.and(self.expect_nothing(trial, a))))
    }

    /// Removes the bridge and the tables, and disables forwarding.
    fn cool_down(&self) {
        if self.host.has_link("cni0") {
            self.host.ip("link delete cni0");
        }
        self.host.run("nft", &["flush", "ruleset"]);
        for key in ["ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"] {
            self.host.set_sysctl(&format!("net/{key}"), "0");
        }
    }

    /// Checks that ADD of another sandbox, maybe into a VRF, works and DEL leaves nothing.
    fn works(&mut self) -> Result<(), String> {
        let (b, chain) = (self.sandbox(), self.chain());
        let result = chain.add(&b)?;
        chain.check_first(chain.len(), (&b, &result))?;
        let _machine = Machine::behind(&chain, &self.host, &b);
        let has_v6 = b.addresses("eth0").len() > 1;
        let by = if b.has_link("blue") { "blue" } else { "eth0" };
        if !(b.pings_from(by, "10.1.0.1") && (!has_v6 || b.pings_from(by, "fd00:1::1"))) {
            return Err("the next sandbox does not reach its gateways".to_owned());
        }
        let reached = || tcp_by_port(&self.host, "127.0.0.1:8080", (&b, 80));
        if chain.position("portmap").is_some() && reached().is_none() {
            return Err("the next sandbox is not reached by its port".to_owned());
        }
        chain.remove(Removal::Del, (&b, &result))?;
        b.remove();
        if self.host.has_link("cni0") {
            // A new bridge has a new MAC. Without `accept_dad` 0, it has checked its address by now.
            self.host.ip("link set cni0 address 02:00:00:00:00:01");
            self.host.set_sysctl("net/ipv6/conf/cni0/accept_dad", "0");
        }
        if !eventually(|| self.host.left_over().is_empty()) {
            return Err(format!("still running: {:?}", self.host.left_over()));
        }
        Ok(())
    }

    /// Checks that nothing of the attachment is left.
    fn expect_nothing(&self, trial: &Trial, a: &Sandbox) -> Result<(), String> {
        let lo = vec!["lo".to_owned()];
        let verb = trial.removal.verb();
        let chain = Some(self.chain()).filter(|it| trial.removal.keeps_address(it));
        chain.map_or(Ok(()), |it| it.gc(&[]))?;
        let left = self.left(a, &(self.before.clone(), lo));
        left.map_err(|left| format!("after {verb} there is {left}"))
    }

    /// Returns an error that lists changes on the host and in the sandbox.
    fn left(&self, a: &Sandbox, (host, links): &(Snapshot, Vec<String>)) -> Result<(), String> {
        let mut left = self.host.snapshot().differences(host);
        let there = a.links();
        left.extend((there != *links).then(|| format!("in the sandbox {there:?}")));
        match left.as_slice() {
            [] => Ok(()),
            _ => Err(left.join(", ")),
        }
    }
}

/// How a run ended, and the leftovers.
type Verdict = (Ended, Result<(), String>);
