//! The queue of packets that wait for a rate.
//!
//! A TBF splits segments into frames. Below it, an `fq_codel` has a queue for each flow, so a ping
//! does not wait behind the packets of other flows. On a kernel without `fq_codel`, the TBF has one
//! short queue of its own.
//!
//! If a TBF has no `fq_codel`, the kernel does not show why. So the lack of an `fq_codel` alone is
//! no reason to set the TBF and the `fq_codel` again.

use netlink::{Connection, Handle, HeldBucket, Place, Qdisc, QdiscKind, Request, TokenBucket};

use crate::error::{Error, module};
use crate::limit::{BitsPerSecond, Limit};

/// A TBF with its queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queue {
    limit: Limit,
    /// Place of the TBF.
    pub place: Place,
    /// Place of the `fq_codel`.
    leaf: Place,
    role: Role,
}

/// What a TBF does besides holding a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It limits the rate.
    Limits,
    /// It only splits segments; the HTB class above it limits the rate.
    Splits,
}

/// A request with the kernel module that it needs.
#[derive(Debug)]
pub(crate) struct Step {
    pub module: &'static str,
    pub request: Request,
}

impl Queue {
    /// Returns the queue of a root TBF with this handle.
    pub fn at_root(link: u32, root: Handle, limit: &Limit) -> Self {
        Self {
            limit: *limit,
            place: Place::new(link, Handle::ROOT, root),
            leaf: Place::new(link, Handle::new(root.major, 1), LEAF),
            role: Role::Limits,
        }
    }

    /// Returns the queue below an HTB class.
    pub fn below_class(link: u32, class: Handle, limit: &Limit) -> Self {
        Self {
            limit: *limit,
            place: Place::new(link, class, LEAF),
            leaf: Place::new(link, BELOW_LEAF, LEAF_OF_LEAF),
            role: Role::Splits,
        }
    }

    /// Returns the requests that set the TBF and the `fq_codel` below it. `leaf` is the present
    /// queue below the TBF. If another program set it, it stays.
    pub fn steps(&self, leaf: Option<&Qdisc>) -> Vec<Step> {
        let tbf = Request::set_tbf(self.place, &self.bucket());
        let fair = Request::set_fq_codel(self.leaf, &self.limit.fair_queue());
        let mut steps = vec![Step::new(module::TBF, tbf)];
        if leaf.is_none_or(|it| it.handle == self.leaf.handle()) {
            steps.push(Step::new(module::FQ_CODEL, fair));
        }
        steps
    }

    /// Returns the parameters of the TBF.
    pub fn bucket(&self) -> TokenBucket {
        let queue = self.limit.plain_queue();
        match self.role {
            Role::Limits => self.limit.bucket(queue),
            Role::Splits => self.splitter(queue, self.limit.piece()),
        }
    }

    /// Returns whether ADD would change neither the TBF nor the queue `leaf` below it.
    pub fn is_as_left(&self, held: &HeldBucket, leaf: Option<&Qdisc>) -> bool {
        let bucket = self.bucket();
        let is_fair = leaf.is_none_or(|it| self.is_fair(it));
        is_fair && holds(held, &bucket) && bucket.is_split_like(held)
    }

    /// Returns whether CHECK accepts the TBF and its queue. The TBF of an earlier release has only
    /// a queue of its own.
    pub fn is_accepted(&self, held: &HeldBucket, leaf: Option<&Qdisc>) -> bool {
        let queue = self.limit.earlier_queue();
        let earlier = match self.role {
            Role::Limits => self.limit.bucket(queue),
            Role::Splits => self.splitter(queue, None),
        };
        let is_earlier = held.peak == 0 && holds(held, &earlier);
        is_earlier || self.is_as_left(held, leaf)
    }

    /// Returns whether `leaf` is the wanted queue, or one that an operator put in its place.
    fn is_fair(&self, leaf: &Qdisc) -> bool {
        match &leaf.kind {
            _ if leaf.handle != self.leaf.handle() => true,
            QdiscKind::FqCodel(held) => self.limit.fair_queue().is_held_by(held),
            _ => false,
        }
    }

    /// Returns a TBF that splits segments longer than `piece` and delays no packet. The kernel does
    /// not report the length of a piece exactly, so the rate encodes it: at this rate, a piece
    /// takes 10 ns.
    fn splitter(&self, queue: u32, piece: Option<u32>) -> TokenBucket {
        let rate = piece.map(|it| u64::from(it) * PIECES_PER_SECOND);
        TokenBucket {
            rate: rate.unwrap_or(BitsPerSecond::MAX.bytes()),
            burst: piece.unwrap_or(self.limit.burst.bytes()),
            limit: queue,
            piece: None,
        }
    }
}

impl Step {
    pub fn new(module: &'static str, request: Request) -> Self {
        Self { module, request }
    }
}

/// Carries out `steps` in one message to the kernel. A kernel without `fq_codel` refuses the step
/// that sets it, which is no error.
///
/// # Errors
/// [`Error::Lacks`] and [`Error::Netlink`]: the first other refusal of a step.
pub(crate) fn carry_out(connection: &Connection, steps: Vec<Step>) -> Result<(), Error> {
    let (modules, requests): (Vec<_>, Vec<_>) =
        steps.into_iter().map(|it| (it.module, it.request)).unzip();
    for (module, outcome) in modules.into_iter().zip(connection.attempt(&requests)?) {
        match outcome {
            Err(error) if module == module::FQ_CODEL && error.is_unknown_kind() => {}
            outcome => outcome.map_err(|error| Error::of(module, error))?,
        }
    }
    Ok(())
}

fn holds(held: &HeldBucket, wanted: &TokenBucket) -> bool {
    wanted.is_held_by(held) && wanted.limit == held.limit
}

const PIECES_PER_SECOND: u64 = 100_000_000;

/// Major number of this crate's qdiscs. Other programs are unlikely to choose this number.
pub(crate) const OURS: u16 = 0xb0;

const LEAF: Handle = Handle::new(OURS + 1, 0);
/// The only class of the TBF below an HTB class.
pub(crate) const BELOW_LEAF: Handle = Handle::new(OURS + 1, 1);
const LEAF_OF_LEAF: Handle = Handle::new(OURS + 2, 0);
