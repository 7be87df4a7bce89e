//! Decides which attachments a round removes.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use node::Node;
use runtime::Conflist;
use upkeep::{Candidate, Leftover, Liveness, UnprovenReason, judge};

use super::waits::PERIOD;

/// The state of the node, the runtimes and the clock, from which a round decides what it removes.
#[derive(Debug)]
pub(super) struct Seen {
    /// The state of the node. The round reads it before it asks the runtimes for their sandboxes.
    /// So `listed` contains each sandbox of an attachment in `node` that a runtime still has.
    pub node: Node,
    /// IDs of the sandboxes that the runtimes listed.
    pub listed: BTreeSet<String>,
    /// How long the wall clock has to stay steady before the date of a file shows its age; `None`
    /// if dates show ages now.
    pub unsteady: Option<Duration>,
    /// Attachments that no runtime lists and that look unused, although they have links.
    pub leftovers: Vec<Leftover>,
    /// The tags of leftovers that have looked unused long enough to be removed.
    pub due: BTreeSet<String>,
    /// The sockets of the runtimes.
    pub sockets: Vec<PathBuf>,
}

#[derive(Debug)]
pub(super) struct Verdict<'n> {
    /// The traces that the node has of the attachment.
    pub candidate: Candidate<'n>,
    /// Why the attachment stays; `None` if the round removes it.
    pub kept: Option<Reason>,
}

#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub(super) enum Reason {
    /// The network's configuration list sets `disableGC`.
    #[display("disableGC is set")]
    Disabled,
    /// The attachment's sandbox exists, or the host's end of its veth pair exists.
    #[display("its sandbox or its link on the host exists")]
    Live,
    /// A runtime lists the attachment's sandbox.
    #[display("a container runtime lists its sandbox")]
    Listed,
    /// The attachment's ADD may still be running, because a lease is young.
    #[display("its address was leased less than five minutes ago")]
    Young,
    /// A lease or the cached result of the attachment changed less than [`RECENT`] ago or has no
    /// known date. So its runtime may be calling DEL now.
    #[display("its lease or cached result changed less than a minute ago")]
    Recent,
    /// The wall clock was set, or the node booted, a short time ago. So dates do not show how old
    /// the attachment is.
    #[display("{UNDATED}")]
    Undated,
    /// The attachment may be live, because its link may exist where the agent cannot see it.
    #[display("it may be live: {_0}")]
    Unproven(UnprovenReason),
    /// The attachment has a link, but looks unused. A later round may remove it.
    #[display("{}", leftover(_0))]
    Leftover(Leftover),
}

impl Seen {
    /// Returns the configured networks. If several files configure the same name, returns only the
    /// network of the file that cnitool uses. Cnitool searches `*.conflist` files first.
    pub fn networks(&self) -> Vec<&Conflist> {
        let mut networks: Vec<_> = self.node.configuration.networks().collect();
        networks.sort_by_key(|(file, _)| !file.is_list());
        let mut names = BTreeSet::new();
        let lists = networks.into_iter().map(|(_, it)| &it.list);
        lists.filter(|it| names.insert(it.name.as_str())).collect()
    }

    /// Returns the decisions about all attachments of `network`.
    pub fn verdicts(&self, network: &Conflist) -> Vec<Verdict<'_>> {
        let judged = judge(&self.node, network).into_iter();
        let verdicts = judged.map(|(state, candidate)| Verdict {
            kept: match self.reason(&candidate, state) {
                _ if network.disable_gc => Some(Reason::Disabled),
                reason => reason,
            },
            candidate,
        });
        verdicts.collect()
    }

    fn reason(&self, candidate: &Candidate<'_>, state: Liveness) -> Option<Reason> {
        let attachment = &candidate.attachment;
        let leftover = self.leftover(candidate);
        let is_due = self.due.contains(&attachment.owner());
        match state {
            Liveness::Live if leftover.is_none() => Some(Reason::Live),
            Liveness::Live if !is_due => leftover.cloned().map(Reason::Leftover),
            _ if self.listed.contains(attachment.container.as_str()) => Some(Reason::Listed),
            Liveness::Young => Some(Reason::Young),
            Liveness::Unproven(reason) => Some(Reason::Unproven(reason)),
            _ if self.unsteady.is_some() => Some(Reason::Undated),
            _ if candidate.changed_within(RECENT) => Some(Reason::Recent),
            Liveness::Live | Liveness::Gone => None,
        }
    }

    /// Returns the attachment of `candidate` if it is one of the leftovers.
    pub fn leftover(&self, candidate: &Candidate<'_>) -> Option<&Leftover> {
        let mut leftovers = self.leftovers.iter();
        leftovers.find(|it| it.attachment == candidate.attachment)
    }

    /// Returns a message for each thing that the round leaves out: an invalid configuration file,
    /// `nf_tables` if they cannot be read, and all attachments if the clock was set or the node
    /// booted a short time ago.
    pub fn left_out(&self) -> Vec<String> {
        let configuration = &self.node.configuration;
        let invalid = configuration.files.iter().filter_map(|file| {
            let reason = file.network.as_ref().err()?;
            Some(format!(
                "{}: {reason}; going on without it",
                configuration.place(file)
            ))
        });
        let unread = self.node.unread.iter();
        let unread = unread.map(|(_, reason)| format!("{reason}; going on without it"));
        let undated = self
            .unsteady
            .map(|_| format!("{UNDATED}: nothing is removed until then"));
        invalid.chain(unread).chain(undated).collect()
    }
}

impl Verdict<'_> {
    /// Returns why the attachment is not proven gone; `None` if it stays for another reason or is
    /// removed.
    pub fn unproven(&self) -> Option<&Reason> {
        let is_unproven = |it: &&Reason| matches!(it, Reason::Unproven(_) | Reason::Leftover(_));
        self.kept.as_ref().filter(is_unproven)
    }
}

impl fmt::Display for Verdict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attachment = &self.candidate.attachment;
        match &self.kept {
            None => write!(f, "remove {attachment}"),
            Some(reason) => write!(f, "keep {attachment}: {reason}"),
        }
    }
}

fn leftover(leftover: &Leftover) -> String {
    let exists = format!(
        "its link {} exists, but no runtime lists its sandbox",
        leftover.link
    );
    if leftover.is_idle {
        let minutes = PERIOD.as_secs() / 60;
        return format!(
            "{exists}, no cache has its result, and its network namespace has no process; it is \
             removed when that has lasted for {minutes} minutes"
        );
    }
    format!(
        "{exists} and no cache has its result; it is removed only if the agent sees the processes of \
         the runtime (`hostPID: true`)"
    )
}

/// An attachment stays if its lease or cached result changed within this time, because its runtime
/// may be calling DEL.
const RECENT: Duration = Duration::from_mins(1);

const UNDATED: &str = "the clock was set, or the node booted, a short time ago, so dates of files \
                       show their ages only after five minutes";
