//! The queue in which packets wait until the rate allows sending them.
//!
//! A TBF splits segments into frames. Below the TBF, an `fq_codel` has a queue for each flow, so a
//! ping does not wait behind the packets of other flows. On a kernel without `fq_codel`, the TBF
//! has one short queue of its own. The kernel does not report why a TBF has no `fq_codel`. The
//! kernel module may have been missing when the limit was set, and may be available now. So each
//! ADD tries to add a missing `fq_codel`.

use netlink::{Connection, Handle, HeldBucket, Place, Qdisc, QdiscKind, Request, TokenBucket};

use crate::limit::LARGEST_SEGMENT;
use crate::{BitsPerSecond, Error, Limit, module};

/// The wanted TBF for a limit, with the wanted `fq_codel` below it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queue {
    pub limit: Limit,
    /// Place of the TBF. At the root, the TBF limits the rate. Below an HTB class, it only splits
    /// segments, because the class limits the rate.
    pub place: Place,
    /// Place of the `fq_codel`.
    pub leaf: Place,
}

/// A request with the kernel module that it needs.
pub(crate) type Step = (&'static str, Request);

impl Queue {
    /// Returns the requests that change the existing TBF `tbf`, and `leaf`, the qdisc below it,
    /// into the wanted ones. Returns no requests if both are as wanted. If `tbf` or `leaf` does not
    /// exist, a request creates it: the kernel may support `fq_codel` now, even if it did not
    /// before.
    ///
    /// The requests keep a `leaf` that another program set. But if a waiting packet may be longer
    /// than the wanted burst, they replace any `leaf`, and all waiting packets are lost.
    pub fn steps(&self, tbf: Option<&HeldBucket>, leaf: Option<&Qdisc>) -> Vec<Step> {
        let is_stuck = tbf.is_some_and(|it| self.would_stop(it));
        let mut steps = Vec::new();
        if is_stuck {
            steps.extend(self.flush(leaf));
        }
        if is_stuck || !tbf.is_some_and(|it| self.is_bucket(it)) {
            let waits = tbf.filter(|_| !is_stuck);
            let request = Request::set_tbf(self.place, &self.bucket_after(waits));
            steps.push((module::TBF, request));
        }
        if is_stuck || !leaf.is_some_and(|it| self.is_fair(it)) {
            let request = Request::set_fq_codel(self.leaf, &self.limit.fair_queue());
            steps.push((module::FQ_CODEL, request));
        }
        steps
    }

    /// Returns whether a packet that is longer than the wanted burst may wait in the existing TBF
    /// `held`. With the wanted burst, the TBF would never send this packet, nor any packet behind
    /// it: the kernel does not check waiting packets when a burst changes (`tbf_change`).
    fn would_stop(&self, held: &HeldBucket) -> bool {
        longest(held) > self.bucket().burst
    }

    /// Returns the wanted parameters of the TBF. If the TBF limits the rate,
    /// [`TokenBucket::longest`] is the length of the longest packet that may wait in the existing
    /// TBF `held`, provided that this length exceeds [`Limit::piece`]. The next change needs this
    /// length, and finds it in the returned parameters, which replace `held` in the kernel.
    fn bucket_after(&self, held: Option<&HeldBucket>) -> TokenBucket {
        let bucket = self.bucket();
        let waiting = held.filter(|_| self.limits_rate()).map(longest);
        let longest = waiting.filter(|it| bucket.piece.is_some_and(|piece| piece < *it));
        TokenBucket {
            longest: longest.unwrap_or_default(),
            ..bucket
        }
    }

    /// Returns the requests that drop all waiting packets by deleting `leaf`, the queue below the
    /// TBF. The kernel refuses to delete a queue that the TBF itself created, so a first request
    /// replaces such a queue. After the deletion, the TBF drops new packets until the caller's next
    /// request changes the TBF, which then creates a queue.
    fn flush(&self, leaf: Option<&Qdisc>) -> Vec<Step> {
        let delete = Request::delete_qdisc(self.place.link, self.leaf.parent);
        let other = Request::set_tbf(self.leaf, &self.bucket());
        let is_own = leaf.is_none_or(|it| it.handle.major == 0);
        let requests = [is_own.then_some(other), Some(delete)];
        let steps = requests.into_iter().flatten();
        steps.map(|it| (module::TBF, it)).collect()
    }

    /// Returns the wanted parameters of the TBF.
    pub fn bucket(&self) -> TokenBucket {
        let queue = self.limit.plain_queue();
        if self.limits_rate() {
            return self.limit.bucket(queue);
        }
        self.splitter(queue)
    }

    /// Returns whether the TBF limits the rate. If not, it only splits segments for the HTB class
    /// above it, which limits the rate.
    fn limits_rate(&self) -> bool {
        self.place.parent == Handle::ROOT
    }

    /// Returns whether the TBF `held` has the wanted parameters. If not, ADD changes the TBF.
    fn is_bucket(&self, held: &HeldBucket) -> bool {
        let bucket = self.bucket();
        let is_as_long = bucket.limit == held.limit;
        bucket.is_held_by(held) && is_as_long && bucket.is_split_like(held)
    }

    /// Returns whether CHECK accepts the TBF `held` and the queue `leaf` below the TBF. CHECK also
    /// accepts a TBF without an `fq_codel`, which the kernel may not support.
    pub fn is_accepted(&self, held: &HeldBucket, leaf: Option<&Qdisc>) -> bool {
        leaf.is_none_or(|it| self.is_fair(it)) && self.is_bucket(held)
    }

    /// Returns whether `leaf` may stay below the TBF: it is the wanted `fq_codel`, or another
    /// program set it.
    fn is_fair(&self, leaf: &Qdisc) -> bool {
        match &leaf.kind {
            _ if leaf.handle != self.leaf.handle => true,
            QdiscKind::FqCodel(held) => self.limit.fair_queue().is_held_by(held),
            _ => false,
        }
    }

    /// Returns a TBF that delays no packet but splits segments that are longer than
    /// [`Limit::piece`] or, if the limit has no piece, longer than the burst.
    fn splitter(&self, queue: u32) -> TokenBucket {
        let piece = self.limit.piece();
        TokenBucket {
            rate: BitsPerSecond::MAX.bytes(),
            burst: LARGEST_SEGMENT,
            limit: queue,
            piece: Some(piece.unwrap_or(self.limit.burst.bytes())),
            ..TokenBucket::default()
        }
    }

    /// Sends the requests of `steps` together ([`Connection::attempt`]). A kernel without
    /// `fq_codel` refuses the step that sets it, which is no error.
    ///
    /// # Errors
    /// [`Error::Lacks`] and [`Error::Netlink`]: the kernel refused a step for another reason. If it
    /// refused several such steps, this function returns the error of the first one.
    pub fn carry_out(&self, connection: &Connection, steps: Vec<Step>) -> Result<(), Error> {
        let (modules, requests): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
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

    /// Returns whether the TBF exists. The caller needs this after the kernel has refused an
    /// `fq_codel`. The kernel returns the same error number if it does not know `fq_codel` and if
    /// another process has deleted the TBF.
    fn has_tbf(&self, connection: &Connection) -> Result<bool, Error> {
        let held = connection.qdisc(self.place.link, self.place.parent)?;
        Ok(held.is_some_and(|it| it.handle == self.place.handle))
    }
}

/// Returns the length in bytes of the longest packet that may wait in the TBF `held`.
fn longest(held: &HeldBucket) -> u32 {
    let length = u32::try_from(held.longest()).unwrap_or(u32::MAX);
    length.min(LARGEST_SEGMENT)
}

/// Major number of this crate's root qdisc. The qdiscs below it have the two next numbers. Other
/// programs are unlikely to choose these numbers.
pub(crate) const OURS: u16 = 0xb0;

pub(crate) const LEAF: Handle = Handle::new(OURS + 1, 0);
/// The only class of the TBF below an HTB class.
pub(crate) const BELOW_LEAF: Handle = Handle::new(OURS + 1, 1);
pub(crate) const LEAF_OF_LEAF: Handle = Handle::new(OURS + 2, 0);
