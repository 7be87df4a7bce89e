//! Attachments that meet faults, one each, and what is left of them.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::chain::{Chain, Removal};
use crate::faults::{Fault, Harm, Trace, strace};
use crate::place::Place as _;
use crate::points::Attack;
use crate::tally::{Ended, Tally};
use crate::traffic::tcp_by_port;
use crate::{Host, Invocation, Outcome, Sandbox, Snapshot, eventually};

/// Who meets the faults, in what company.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    /// For the table.
    pub name: &'static str,
    /// The plugins that make an attachment, the first one first.
    pub chain: &'static [&'static str],
    /// Those of them, or `host-local`, that meet faults, each by itself.
    pub victims: &'static [&'static str],
}

/// What is going on when the fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// An ADD like many before it.
    Add,
    /// An ADD that finds no bridge, no table and a host that does not forward.
    FirstAdd,
    /// A removal, and the next one that makes up for it.
    Removal,
}

/// A host on which there was an attachment before, and what is known of the faults so far.
#[derive(Debug)]
pub struct Lab {
    host: Host,
    subject: Subject,
    /// A host without any attachment, to which it has to come back.
    before: Snapshot,
    sandboxes: usize,
}

/// A fault, to whom it happens, and by what its traces have to go.
#[derive(Debug)]
struct Trial {
    fault: Fault,
    victim: &'static str,
    removal: Removal,
}

/// Tries all that `attack` can do to `subject` at that moment, or a sample of it. At least so many
/// points have to be found, and of ten that are tried so many have to fail or to be killed.
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
        let (ended, verdict) = match lab.attempt_twice(moment, &trial) {
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
            // What is left is told once.
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
            Self::Removal => "DEL, GC",
        }
    }
}

impl Lab {
    /// Moves the calling thread onto a host of its own, as [`Host::new`] does.
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

    /// One more. All names are of one length, as are all messages that bear one.
    fn sandbox(&mut self) -> Sandbox {
        self.sandboxes += 1;
        self.host.sandbox(&format!("a{:05}", self.sandboxes))
    }

    fn file(&self) -> PathBuf {
        self.host.dir().join("trace")
    }

    /// The victim's place in the chain; that of who runs it, where it is no part of the chain.
    fn place(&self, victim: &str) -> usize {
        self.chain().position(victim).unwrap_or(0)
    }

    /// Every fault at every point of the victims' runs.
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
            let faults = attack
                .faults(&self.trace_of_add(victim, moment))
                .into_iter();
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

    /// All that an ADD of the victim calls without any fault.
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

    /// All that a removal by the victim calls without any fault.
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
            // How many events tell of the link's end is never the same, and an answer is changed by its
            // place and its length.
            Attack::Refusal => trace.without_after("/proc/self/exe", "recvfrom"),
            _ => trace,
        }
    }

    /// Runs `call` with the victim's part of it, the whole or that of its delegate, under `strace`.
    /// Every process that it starts has its standard error, and has ended when this returns, but
    /// for those that nobody waits for.
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

    /// Once more if it hangs. Where a run asks more or less than the recorded one, which depends on when the
    /// kernel tells of events, the error takes the place of an answer with another number, and the process waits
    /// for that one: no kernel does this, and it does not happen twice.
    fn attempt_twice(&mut self, moment: Moment, trial: &Trial) -> Result<Verdict, String> {
        for _ in 0..2 {
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

    /// What others will need may be there or not, but the next ADD works, as if nothing had been.
    fn attempt_first_add(&mut self, trial: &Trial, a: &Sandbox) -> Result<Verdict, String> {
        self.cool_down();
        let chain = self.chain();
        let before = chain.add_first(self.place(trial.victim), a)?;
        let (ended, result, verdict) = self.add(trial, (a, before))?;
        let removed = chain.remove(trial.removal, (a, &result));
        let verdict = verdict.and(removed).and(self.works());
        Ok((ended, verdict.and(self.expect_nothing(trial, a))))
    }

    /// ADD of the victim's plugin, with the fault; what the runtime knows then, and whether CHECK
    /// agrees with an ADD that succeeded.
    fn add(
        &self,
        trial: &Trial,
        (a, before): (&Sandbox, Value),
    ) -> Result<(Ended, Value, Result<(), String>), String> {
        let (chain, place) = (self.chain(), self.place(trial.victim));
        let add = chain.call(place, "ADD", (a, &before));
        let outcome = self.strike(trial.victim, &add, &trial.fault.strace(&self.file()));
        let ended = ended(&outcome, trial.fault.harm())?;
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
            ended_as = ended(&outcome, trial.fault.harm())?;
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

    /// There is no bridge and no table again, and the host does not forward.
    fn cool_down(&self) {
        if self.host.has_link("cni0") {
            self.host.ip("link delete cni0");
        }
        self.host.run("nft", &["flush", "ruleset"]);
        for key in ["ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"] {
            self.host.set_sysctl(&format!("net/{key}"), "0");
        }
    }

    /// An ADD of another sandbox finds a host that works, or makes it so, and DEL leaves nothing.
    fn works(&mut self) -> Result<(), String> {
        let b = self.sandbox();
        let chain = self.chain();
        let result = chain.add(&b)?;
        chain.check_first(chain.len(), (&b, &result))?;
        if !(b.pings("10.1.0.1") && b.pings("fd00:1::1")) {
            return Err("the next sandbox does not reach its gateways".to_owned());
        }
        let reached = || tcp_by_port(&self.host, "127.0.0.1:8080", (&b, 80));
        if chain.position("portmap").is_some() && reached().is_none() {
            return Err("the next sandbox is not reached by its port".to_owned());
        }
        chain.remove(Removal::Del, (&b, &result))?;
        b.remove();
        // A new bridge has a new MAC; and where nobody kept it from looking for duplicates of its
        // link-local address, it has done so by now.
        self.host.ip("link set cni0 address 02:00:00:00:00:01");
        self.host.set_sysctl("net/ipv6/conf/cni0/accept_dad", "0");
        if !eventually(|| self.host.left_over().is_empty()) {
            return Err(format!("still running: {:?}", self.host.left_over()));
        }
        Ok(())
    }

    /// All of the attachment is gone.
    fn expect_nothing(&self, trial: &Trial, a: &Sandbox) -> Result<(), String> {
        let lo = vec!["lo".to_owned()];
        let verb = trial.removal.verb();
        let left = self.left(a, &(self.before.clone(), lo));
        left.map_err(|left| format!("after {verb} there is {left}"))
    }

    /// An error that says what is not as it was, on the host and in the sandbox.
    fn left(&self, a: &Sandbox, (host, links): &(Snapshot, Vec<String>)) -> Result<(), String> {
        let mut left = self.host.snapshot().differences(host);
        let there = a.links();
        if there != *links {
            left.push(format!("in the sandbox {there:?}"));
        }
        match left.as_slice() {
            [] => Ok(()),
            _ => Err(left.join(", ")),
        }
    }
}

/// How a run ended, and what is wrong with what it left.
type Verdict = (Ended, Result<(), String>);

/// # Errors
/// It failed without an error object, or hung where nothing was taken from it.
fn ended(outcome: &Outcome, harm: Harm) -> Result<Ended, String> {
    match outcome.status.code() {
        Some(0) => Ok(Ended::Succeeded),
        // timeout(1) ends as what it runs does, or tells it by 137.
        None | Some(137) if harm == Harm::Kill => Ok(Ended::Killed),
        Some(124) if matches!(harm, Harm::Answer(_)) => Ok(Ended::Hung),
        _ => match serde_json::from_str::<Value>(&outcome.stdout) {
            Ok(object) if object["code"].is_u64() => Ok(Ended::Failed),
            _ => Err(format!("no error object: {outcome:?}")),
        },
    }
}
