//! Limits the egress packets of a link, which queue at the link.
//!
//! A limit for all traffic uses one token bucket filter (TBF). A limit for a part of the traffic
//! uses HTB with one limited class, and filters that assign packets to the class; other packets
//! bypass the class. An HTB class does not split a segment of 64 KiB, which takes half a second at
//! 1 Mbit/s. So the class contains a TBF that delays no packets but splits segments. In both cases,
//! packets wait below the TBF ([`Queue`]).

use ipnetwork::IpNetwork;
use netlink::{
    Connection, Filter, Handle, HeldBucket, Link, Packets, Place, Qdisc, QdiscKind, Request,
};

use crate::queue::{BELOW_LEAF, OURS, Queue, Step};
use crate::{Case, End, Error, Limit, Traffic, module};

/// A link, for setting, reading and removing a limit of its egress packets.
#[derive(Clone, Copy)]
pub struct LinkEgress<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) link: &'a Link,
    pub(crate) end: End<'a>,
}

/// The qdiscs that limit a link's egress, as the kernel reports them.
#[derive(Default)]
pub struct Held {
    /// The root qdisc, if this crate or the Go plugin `bandwidth` set it.
    pub(crate) root: Option<Qdisc>,
    /// The qdisc below the root TBF or, if the root is an HTB, below the limited class.
    first: Option<Qdisc>,
    /// The qdisc below the TBF of the limited class.
    second: Option<Qdisc>,
    /// The token bucket of the limited class, if the root is an HTB.
    class: Option<HeldBucket>,
}

impl Held {
    /// Returns whether the link has a limit that this crate or the Go plugin `bandwidth` set.
    pub fn is_limited(&self) -> bool {
        self.root.is_some()
    }

    /// Returns whether the link has a limit that this crate set.
    pub fn is_own(&self) -> bool {
        let root = self.root.as_ref();
        root.is_some_and(|it| it.handle.major == OURS)
    }

    /// Returns the rate of the limit in bytes per second; `None` if the link has no limit.
    pub fn rate(&self) -> Option<u64> {
        let bucket = self.root.as_ref().and_then(tbf).or(self.class.as_ref());
        bucket.map(|it| it.rate)
    }

    /// Returns whether the limited HTB class exists with this limit.
    fn has_class(&self, limit: &Limit) -> bool {
        let class = self.class.as_ref();
        class.is_some_and(|it| limit.bucket(0).is_held_by(it))
    }

    /// Returns the parameters of the TBF below the limited class; `None` if the class has no qdisc
    /// or one of another kind.
    fn splitter(&self) -> Option<&HeldBucket> {
        self.first.as_ref().and_then(tbf)
    }
}

/// Returns the parameters of a TBF; `None` if `qdisc` is of another kind.
fn tbf(qdisc: &Qdisc) -> Option<&HeldBucket> {
    match &qdisc.kind {
        QdiscKind::Tbf(held) => Some(held),
        _ => None,
    }
}

impl<'a> LinkEgress<'a> {
    /// Wraps the link, a connection to the link's namespace, and the end that the link is.
    pub fn new(connection: &'a Connection, link: &'a Link, end: End<'a>) -> Self {
        Self {
            connection,
            link,
            end,
        }
    }

    /// Limits `traffic` to `limit`. Replaces an earlier limit of this crate or of the Go plugin
    /// `bandwidth`. `held` is the result of [`Self::held`].
    ///
    /// If the earlier limit applies to the same traffic, the kernel changes the existing qdiscs, so
    /// the link always has a limit. Waiting packets stay, unless one may be longer than the new
    /// burst.
    ///
    /// If the earlier limit applies to other traffic, this function replaces the qdiscs. If that
    /// fails and leaves no complete limit, it limits all traffic. If that fails, too, the link may
    /// have no limit.
    ///
    /// # Errors
    /// [`Error::Lacks`] and [`Error::Netlink`].
    pub fn ensure(&self, held: &Held, limit: &Limit, traffic: &Traffic) -> Result<(), Error> {
        let Some(root) = &held.root else {
            return self.limit_new(limit, traffic);
        };
        if !self.can_change(root, traffic)? {
            return self.replace(root, limit, traffic);
        }
        if *traffic != Traffic::All {
            return self.limit_class(limit, held);
        }
        let queue = Queue::at_root(self.link.index, root.handle, limit);
        let steps = queue.steps(tbf(root), held.first.as_ref());
        queue.carry_out(self.connection, steps)
    }

    /// Changes a limit that this crate set for `traffic` to `limit`, without a new root qdisc. Does
    /// nothing if the link has no such limit, or if CHECK accepts the link's limit as `limit`.
    ///
    /// # Errors
    /// [`Error::Lacks`] and [`Error::Netlink`].
    pub fn change(&self, limit: &Limit, traffic: &Traffic) -> Result<(), Error> {
        let held = match self.held() {
            Err(Error::Foreign { .. }) => return Ok(()),
            held => held?,
        };
        let Some(root) = held.root.as_ref().filter(|_| held.is_own()) else {
            return Ok(());
        };
        if self.can_change(root, traffic)? && self.difference_of(&held, limit, traffic)?.is_some() {
            self.ensure(&held, limit, traffic)?;
        }
        Ok(())
    }

    /// Returns whether the limit with the root qdisc `root` applies to `traffic`. The kernel can
    /// then change the limit without a new root qdisc.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    fn can_change(&self, root: &Qdisc, traffic: &Traffic) -> Result<bool, Error> {
        match traffic {
            Traffic::All => Ok(tbf(root).is_some()),
            Traffic::Only(_) | Traffic::AllBut(_) => self.is_classified(root, traffic),
        }
    }

    /// Removes a limit of this crate or of the Go plugin `bandwidth`; qdiscs of other programs
    /// stay.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn remove(&self) -> Result<(), Error> {
        let root = self.connection.qdisc(self.link.index, Handle::ROOT)?;
        match self.own_root(root) {
            Err(Error::Foreign { .. }) | Ok(None) => Ok(()),
            Err(error) => Err(error),
            Ok(Some(_)) => Ok(self.connection.execute([self.delete_request()])?),
        }
    }

    /// Returns a text for the operator if CHECK does not accept the link's limit as `limit` for
    /// `traffic`; `None` if it does. CHECK also accepts a limit without an `fq_codel`, although
    /// [`Self::ensure`] would change it.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn difference(&self, limit: &Limit, traffic: &Traffic) -> Result<Option<String>, Error> {
        match self.held() {
            Err(Error::Foreign { link, kind, handle }) => Ok(Some(format!(
                "{link} has qdisc {kind} {handle} of another program"
            ))),
            Err(error) => Err(error),
            Ok(held) => self.difference_of(&held, limit, traffic),
        }
    }

    fn difference_of(
        &self,
        held: &Held,
        limit: &Limit,
        traffic: &Traffic,
    ) -> Result<Option<String>, Error> {
        let name = &self.link.name;
        let bucket = held.root.as_ref().and_then(tbf);
        let (is_accepted, difference) = match (traffic, &held.root, bucket) {
            (Traffic::All, Some(root), Some(bucket)) => {
                let queue = Queue::at_root(self.link.index, root.handle, limit);
                let difference = format!("{name} has {bucket}, not {}", queue.bucket());
                (queue.is_accepted(bucket, held.first.as_ref()), difference)
            }
            (Traffic::Only(_) | Traffic::AllBut(_), Some(root), _) => {
                let queue = Queue::below_class(self.link.index, CLASS, limit);
                let leaf = held.second.as_ref();
                let splits = |it: &HeldBucket| queue.is_accepted(it, leaf);
                let is_accepted = self.is_classified(root, traffic)?
                    && held.has_class(limit)
                    && held.splitter().is_some_and(splits);
                let bucket = limit.bucket(limit.plain_queue());
                let difference = format!("the limit of {name} is not {bucket} for these subnets");
                (is_accepted, difference)
            }
            _ => (false, format!("{name} has no limit")),
        };
        Ok((!is_accepted).then_some(difference))
    }

    /// Reads the qdiscs that limit the link's egress packets. Without a limit, [`Held::is_limited`]
    /// returns `false`.
    ///
    /// # Errors
    /// [`Error::Foreign`]: another program set the root qdisc; [`Error::Netlink`].
    pub fn held(&self) -> Result<Held, Error> {
        let places = [Handle::ROOT, CLASS, BELOW_LEAF];
        let [root, first, second] = self.connection.qdiscs(self.link.index, places)?;
        let root = self.own_root(root)?;
        let first = match &root {
            Some(root) if root.handle.major == MAJOR_OF_REFERENCE => {
                let below = Handle::new(MAJOR_OF_REFERENCE, 1);
                self.connection.qdisc(self.link.index, below)?
            }
            _ => first,
        };
        let class = match root.as_ref().map(|it| &it.kind) {
            Some(QdiscKind::Htb { .. }) => self.class()?,
            _ => None,
        };
        Ok(Held {
            root,
            first,
            second,
            class,
        })
    }

    /// Returns the root qdisc if this crate or the Go plugin `bandwidth` set it; `None` if the link
    /// has at most the kernel's default qdisc.
    ///
    /// # Errors
    /// [`Error::Foreign`]: another program set the root qdisc.
    fn own_root(&self, root: Option<Qdisc>) -> Result<Option<Qdisc>, Error> {
        match root {
            // The kernel's default qdisc has no handle.
            Some(root) if root.handle.major != 0 && !is_known(&root) => Err(Error::Foreign {
                link: self.link.name.clone(),
                kind: root.kind.to_string(),
                handle: root.handle,
            }),
            root => Ok(root.filter(is_known)),
        }
    }

    /// Sets `limit` on the limited HTB class and on the qdiscs below it.
    fn limit_class(&self, limit: &Limit, held: &Held) -> Result<(), Error> {
        let queue = Queue::below_class(self.link.index, CLASS, limit);
        let leaf = held.second.as_ref();
        let mut steps = Vec::new();
        if !held.has_class(limit) {
            steps.push(Step::new(module::HTB, self.class_request(limit)));
        }
        steps.extend(queue.steps(held.splitter(), leaf));
        queue.carry_out(self.connection, steps)
    }

    pub(crate) fn class_request(&self, limit: &Limit) -> Request {
        let class = Place::new(self.link.index, ROOT, CLASS);
        Request::set_htb_class(class, &limit.bucket(0))
    }

    pub(crate) fn delete_request(&self) -> Request {
        Request::delete_qdisc(self.link.index, Handle::ROOT)
    }

    /// Returns whether `root` is an HTB whose default class and filters limit exactly `traffic`.
    fn is_classified(&self, root: &Qdisc, traffic: &Traffic) -> Result<bool, Error> {
        match root.kind {
            QdiscKind::Htb { default, .. } if default == default_class(traffic, self.end) => {
                self.has_filters(traffic)
            }
            _ => Ok(false),
        }
    }

    /// Returns the token bucket of the limited HTB class; `None` if the class does not exist.
    pub(crate) fn class(&self) -> Result<Option<HeldBucket>, Error> {
        let class = self.connection.class(self.link.index, CLASS)?;
        Ok(class.and_then(|it| match it.kind {
            QdiscKind::Htb { class, .. } => class,
            _ => None,
        }))
    }

    pub(crate) fn has_filters(&self, traffic: &Traffic) -> Result<bool, Error> {
        Ok(self.filters()? == wanted_filters(traffic, self.end))
    }

    pub(crate) fn filters(&self) -> Result<Vec<Filter>, Error> {
        let held = self.connection.filters(self.link.index, ROOT)?;
        Ok(held.into_iter().filter_map(|it| it.filter).collect())
    }
}

/// Returns whether this crate or the Go plugin `bandwidth` set the root qdisc. An HTB of the Go
/// plugin (versions 1.5.0 and 1.5.1) counts as the qdisc of another program.
pub(crate) fn is_known(root: &Qdisc) -> bool {
    match root.handle.major {
        OURS => true,
        MAJOR_OF_REFERENCE => matches!(root.kind, QdiscKind::Tbf(_)),
        _ => false,
    }
}

/// Returns the minor number of the class for packets that match no filter. This is the limited
/// class. Only towards the container, 0 (no class) if only listed subnets are limited.
pub(crate) fn default_class(traffic: &Traffic, end: End<'_>) -> u32 {
    match (traffic, end) {
        (Traffic::Only(_), End::Host) => 0,
        _ => CLASS.minor.into(),
    }
}

/// Returns the wanted filters, one for each of [`Traffic::cases`]. They assign packets to the
/// limited class, or to the root qdisc, so that the packets bypass this class. Filters for IPv4 have
/// priority 1 and filters for IPv6 priority 2, because all filters of one priority share a protocol.
pub(crate) fn wanted_filters(traffic: &Traffic, end: End<'_>) -> Vec<Filter> {
    let filter = |(subnet, case): (IpNetwork, Case)| Filter {
        priority: if subnet.is_ipv4() { 1 } else { 2 },
        packets: match end {
            End::Host => Packets::From(subnet),
            End::Container(_) => Packets::To(subnet),
        },
        class: match case {
            Case::Limited => CLASS,
            Case::Free => ROOT,
        },
    };
    let mut filters: Vec<_> = traffic.cases().into_iter().map(filter).collect();
    filters.sort_by_key(|it| it.priority);
    filters
}

/// Major number of the qdiscs of the Go plugin `bandwidth`.
pub(crate) const MAJOR_OF_REFERENCE: u16 = 1;

pub(crate) const ROOT: Handle = Handle::new(OURS, 0);
/// The HTB class for limited traffic.
pub(crate) const CLASS: Handle = Handle::new(OURS, 1);
