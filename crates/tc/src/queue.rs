//! The queue of packets that wait for a rate.
//!
//! A TBF splits segments into frames. Below it, an `fq_codel` has a queue for each flow, so a ping
//! does not wait behind the packets of other flows. On a kernel without `fq_codel`, the TBF has one
//! short queue of its own. Nothing in the kernel shows the reason why there is no `fq_codel`. So
//! each ADD tries to set a missing one.

use netlink::{Connection, Handle, HeldBucket, Place, Qdisc, QdiscKind, Request, TokenBucket};

use crate::error::{Error, module};
use crate::limit::{BitsPerSecond, LARGEST_SEGMENT, Limit};

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

    /// Returns the requests that set what differs from the existing TBF and `fq_codel`; none if ADD
    /// would change nothing. A queue of another program stays, unless packets have to go. Without an
    /// `fq_codel`, a request always sets one, because the kernel may support it since.
    pub fn steps(&self, tbf: Option<&HeldBucket>, leaf: Option<&Qdisc>) -> Vec<Step> {
        let is_stuck = tbf.is_some_and(|it| self.would_stop(it));
        let mut steps = Vec::new();
        if is_stuck {
            steps.extend(self.flush(leaf));
        }
        if is_stuck || !tbf.is_some_and(|it| self.is_bucket(it)) {
            let waits = tbf.filter(|_| !is_stuck);
            let request = Request::set_tbf(self.place, &self.bucket_after(waits));
            steps.push(Step::new(module::TBF, request));
        }
        if is_stuck || !leaf.is_some_and(|it| self.is_fair(it)) {
            let request = Request::set_fq_codel(self.leaf, &self.limit.fair_queue());
            steps.push(Step::new(module::FQ_CODEL, request));
        }
        steps
    }

    /// Returns whether a packet may wait that is longer than the burst. The TBF would never send it,
    /// nor any packet behind it. (`tbf_change` does not look at the packets that wait.)
    fn would_stop(&self, held: &HeldBucket) -> bool {
        longest(held) > self.bucket().burst
    }

    /// Returns the parameters of the TBF if packets of `held` may still wait. After further changes,
    /// the kernel shows only the present pieces, so the TBF also states the longest earlier packet.
    fn bucket_after(&self, held: Option<&HeldBucket>) -> TokenBucket {
        let bucket = self.bucket();
        let waiting = held.filter(|_| self.role == Role::Limits).map(longest);
        let longest = waiting.filter(|it| bucket.piece.is_some_and(|piece| piece < *it));
        TokenBucket {
            longest: longest.unwrap_or_default(),
            ..bucket
        }
    }

    /// Returns the requests that drop all packets that wait: the deletion of the queue below the TBF.
    /// The kernel refuses to delete a queue that the TBF created itself, so another queue replaces it
    /// first. Without a queue, the TBF drops new packets until its next change, which creates one.
    fn flush(&self, leaf: Option<&Qdisc>) -> Vec<Step> {
        let delete = Request::delete_qdisc(self.place.link, self.leaf.parent);
        let other = Request::set_tbf(self.leaf, &self.bucket());
        let is_own = leaf.is_none_or(|it| it.handle.major == 0);
        let requests = [is_own.then_some(other), Some(delete)];
        let steps = requests.into_iter().flatten();
        steps.map(|it| Step::new(module::TBF, it)).collect()
    }

    /// Returns the parameters of the TBF.
    pub fn bucket(&self) -> TokenBucket {
        let queue = self.limit.plain_queue();
        match self.role {
            Role::Limits => self.limit.bucket(queue),
            Role::Splits => self.splitter(queue),
        }
    }

    /// Returns whether ADD would not change the TBF.
    fn is_bucket(&self, held: &HeldBucket) -> bool {
        let bucket = self.bucket();
        holds(held, &bucket) && bucket.is_split_like(held)
    }

    /// Returns whether CHECK accepts the TBF and its queue. The TBF of an earlier release, or on a
    /// kernel without `fq_codel`, has only a queue of its own.
    pub fn is_accepted(&self, held: &HeldBucket, leaf: Option<&Qdisc>) -> bool {
        let queue = self.limit.earlier_queue();
        let earlier = match self.role {
            Role::Limits => self.limit.bucket(queue),
            Role::Splits => TokenBucket {
                burst: self.limit.burst.bytes(),
                ..self.splitter(queue)
            },
        };
        let is_earlier = held.peak == 0 && holds(held, &earlier);
        let is_fair = leaf.is_none_or(|it| self.is_fair(it));
        is_earlier || is_fair && self.is_bucket(held)
    }

    /// Returns whether `leaf` is the wanted queue, or one that an operator put in its place.
    fn is_fair(&self, leaf: &Qdisc) -> bool {
        match &leaf.kind {
            _ if leaf.handle != self.leaf.handle => true,
            QdiscKind::FqCodel(held) => self.limit.fair_queue().is_held_by(held),
            _ => false,
        }
    }

    /// Returns a TBF that splits segments longer than a piece. It delays no packet, whatever its
    /// length.
    fn splitter(&self, queue: u32) -> TokenBucket {
        let piece = self.limit.piece();
        TokenBucket {
            rate: BitsPerSecond::MAX.bytes(),
            burst: LARGEST_SEGMENT,
            limit: queue,
            piece: Some(piece.unwrap_or(self.limit.burst.bytes())),
            longest: 0,
        }
    }

    /// Carries out `steps` in one message to the kernel. A kernel without `fq_codel` refuses the
    /// step that sets it, which is no error.
    ///
    /// # Errors
    /// [`Error::Lacks`] and [`Error::Netlink`]: the first other refusal of a step.
    pub fn carry_out(&self, connection: &Connection, steps: Vec<Step>) -> Result<(), Error> {
        let (modules, requests): (Vec<_>, Vec<_>) =
            steps.into_iter().map(|it| (it.module, it.request)).unzip();
        for (module, outcome) in modules.into_iter().zip(connection.attempt(&requests)?) {
            let Err(error) = outcome else {
                continue;
            };
            let may_lack = module == module::FQ_CODEL && error.is_unknown_kind();
            if !(may_lack && self.has_tbf(connection)?) {
                return Err(match module {
                    module::FQ_CODEL => Error::Netlink(error),
                    _ => Error::of(module, error),
                });
            }
        }
        Ok(())
    }

    /// Returns whether the TBF exists. The kernel refuses an `fq_codel` with the same error number
    /// if it does not know the kind and if another process has deleted the TBF meanwhile.
    fn has_tbf(&self, connection: &Connection) -> Result<bool, Error> {
        let held = connection.qdisc(self.place.link, self.place.parent)?;
        Ok(held.is_some_and(|it| it.handle == self.place.handle))
    }
}

impl Step {
    pub fn new(module: &'static str, request: Request) -> Self {
        Self { module, request }
    }
}

/// Returns the length in bytes of the longest packet that may wait in a TBF.
fn longest(held: &HeldBucket) -> u32 {
    let length = u32::try_from(held.longest()).unwrap_or(u32::MAX);
    length.min(LARGEST_SEGMENT)
}

fn holds(held: &HeldBucket, wanted: &TokenBucket) -> bool {
    wanted.is_held_by(held) && wanted.limit == held.limit
}

/// Major number of this crate's qdiscs. Other programs are unlikely to choose this number.
pub(crate) const OURS: u16 = 0xb0;

const LEAF: Handle = Handle::new(OURS + 1, 0);
/// The only class of the TBF below an HTB class.
pub(crate) const BELOW_LEAF: Handle = Handle::new(OURS + 1, 1);
const LEAF_OF_LEAF: Handle = Handle::new(OURS + 2, 0);
