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

use crate::queue::{BELOW_LEAF, LEAF, LEAF_OF_LEAF, OURS, Queue};
use crate::{Case, End, Error, Limit, Traffic, module};

/// A link, for setting, reading and removing a limit of its egress packets.
#[derive(Clone, Copy)]
pub struct LinkEgress<'a> {
    pub(crate) connection: &'a Connection,
    /// The link.
    pub link: &'a Link,
    pub(crate) end: End<'a>,
}

/// The qdiscs that limit a link's egress, as the kernel reports them.
#[derive(Default)]
pub struct InstalledQdiscs {
    /// The root qdisc, if this crate or the Go plugin `bandwidth` set it.
    pub(crate) root: Option<Qdisc>,
    /// The TBF at the root or, if the root is an HTB, below the limited class.
    bucket: Option<HeldBucket>,
    /// The qdisc below this TBF.
    leaf: Option<Qdisc>,
    /// The token bucket of the limited class, if the root is an HTB.
    pub(crate) class: Option<HeldBucket>,
}

impl InstalledQdiscs {
    /// Returns whether the link has a limit that this crate or the Go plugin `bandwidth` set.
    pub fn is_limited(&self) -> bool {
        self.root.is_some()
    }

    /// Returns whether the link has a limit that this crate set.
    pub fn is_own(&self) -> bool {
        let root = self.root.as_ref();
        root.is_some_and(|it| it.handle.major == OURS)
    }

    /// Returns whether the limited HTB class exists with this limit.
    fn has_class(&self, limit: &Limit) -> bool {
        let class = self.class.as_ref();
        class.is_some_and(|it| limit.bucket(0).is_held_by(it))
    }

    /// Returns the rate of the limit in bytes per second; `None` if the link has no limit.
    pub fn rate(&self) -> Option<u64> {
        Some(self.class.or(self.bucket)?.rate)
    }
}

/// Returns the parameters of a TBF; `None` if `qdisc` is of another kind.
fn tbf(qdisc: &Qdisc) -> Option<HeldBucket> {
    match qdisc.kind {
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
    pub fn ensure(
        &self,
        held: &InstalledQdiscs,
        limit: &Limit,
        traffic: &Traffic,
    ) -> Result<(), Error> {
        let Some(root) = &held.root else {
            let (queue, steps) = self.tree(limit, traffic);
            return queue.carry_out(self.connection, steps);
        };
        if !self.can_change(root, traffic)? {
            return self.replace(root, limit, traffic);
        }
        let queue = self.queue(root.handle, limit, traffic);
        let is_complete = *traffic == Traffic::All || held.has_class(limit);
        let class = (!is_complete).then(|| (module::HTB, self.class_request(limit)));
        let steps = queue.steps(held.bucket.as_ref(), held.leaf.as_ref());
        queue.carry_out(self.connection, class.into_iter().chain(steps).collect())
    }

    /// Returns the wanted queue below the root qdisc with the handle `root`, or at its place.
    pub(crate) fn queue(&self, root: Handle, limit: &Limit, traffic: &Traffic) -> Queue {
        let [place, leaf] = match traffic {
            Traffic::All => [(Handle::ROOT, root), (Handle::new(root.major, 1), LEAF)],
            _ => [(CLASS, LEAF), (BELOW_LEAF, LEAF_OF_LEAF)],
        }
        .map(|(parent, handle)| Place::new(self.link.index, parent, handle));
        Queue {
            limit: *limit,
            place,
            leaf,
        }
    }

    /// Changes a limit that this crate set for `traffic` to `limit`, without a new root qdisc. Does
    /// nothing if the link has no such limit, or if CHECK accepts the link's limit as `limit`. `held`
    /// is the result of [`Self::held`].
    ///
    /// # Errors
    /// [`Error::Lacks`] and [`Error::Netlink`].
    pub fn change(
        &self,
        held: &InstalledQdiscs,
        limit: &Limit,
        traffic: &Traffic,
    ) -> Result<(), Error> {
        let Some(root) = held.root.as_ref().filter(|_| held.is_own()) else {
            return Ok(());
        };
        if self.can_change(root, traffic)? && self.difference_of(held, limit, traffic)?.is_some() {
            self.ensure(held, limit, traffic)?;
        }
        Ok(())
    }

    /// Returns whether the limit with the root qdisc `root` applies to `traffic`: it is a TBF for all
    /// traffic, or an HTB whose default class and filters limit exactly `traffic`. The kernel can then
    /// change the limit without a new root qdisc.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    fn can_change(&self, root: &Qdisc, traffic: &Traffic) -> Result<bool, Error> {
        match (&root.kind, traffic) {
            (kind, Traffic::All) => Ok(matches!(kind, QdiscKind::Tbf(_))),
            (QdiscKind::Htb { default, .. }, _) if *default == default_class(traffic, self.end) => {
                self.has_filters(traffic)
            }
            _ => Ok(false),
        }
    }

    /// Removes a limit of this crate or of the Go plugin `bandwidth`; qdiscs of other programs
    /// stay.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn remove(&self) -> Result<(), Error> {
        let root = self.connection.qdisc(self.link.index, Handle::ROOT)?;
        if root.as_ref().is_some_and(is_known) {
            self.connection.execute([self.delete_request()])?;
        }
        Ok(())
    }

    /// Removes the limit as [`Self::remove`] does, over a new connection: for a rollback, because the
    /// connection itself may have failed.
    ///
    /// # Errors
    /// As [`Self::remove`], or the connection cannot be opened.
    pub fn remove_anew(&self) -> Result<(), Error> {
        LinkEgress::new(&self.end.connect()?, self.link, self.end).remove()
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
        held: &InstalledQdiscs,
        limit: &Limit,
        traffic: &Traffic,
    ) -> Result<Option<String>, Error> {
        let name = &self.link.name;
        let Some((root, bucket)) = held.root.as_ref().zip(held.bucket) else {
            return Ok(Some(format!("{name} has no limit")));
        };
        let queue = self.queue(root.handle, limit, traffic);
        let is_accepted = self.can_change(root, traffic)?
            && (*traffic == Traffic::All || held.has_class(limit))
            && queue.is_accepted(&bucket, held.leaf.as_ref());
        let wanted = limit.bucket(limit.plain_queue());
        Ok((!is_accepted).then(|| match (traffic, tbf(root)) {
            (Traffic::All, Some(bucket)) => format!("{name} has {bucket}, not {wanted}"),
            (Traffic::All, None) => format!("{name} has no limit for all traffic, {wanted}"),
            _ => format!("the limit of {name} is not {wanted} for these subnets"),
        }))
    }

    /// Reads the qdiscs that limit the link's egress packets. Without a limit,
    /// [`InstalledQdiscs::is_limited`] returns `false`.
    ///
    /// # Errors
    /// [`Error::Foreign`]: another program set the root qdisc; [`Error::Netlink`].
    pub fn held(&self) -> Result<InstalledQdiscs, Error> {
        let places = [Handle::ROOT, CLASS, BELOW_LEAF];
        let [root, first, second] = self.connection.qdiscs(self.link.index, places)?;
        let Some(root) = self.own_root(root)? else {
            return Ok(InstalledQdiscs::default());
        };
        let (above, leaf, class) = match root.kind {
            QdiscKind::Htb { .. } => (first, second, self.class(CLASS)?),
            _ if root.handle.major == OURS => (Some(root.clone()), first, None),
            _ => {
                let below = Handle::new(MAJOR_OF_REFERENCE, 1);
                let leaf = self.connection.qdisc(self.link.index, below)?;
                (Some(root.clone()), leaf, None)
            }
        };
        Ok(InstalledQdiscs {
            root: Some(root),
            bucket: above.as_ref().and_then(tbf),
            leaf,
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

    pub(crate) fn class_request(&self, limit: &Limit) -> Request {
        let class = Place::new(self.link.index, ROOT, CLASS);
        Request::set_htb_class(class, &limit.bucket(0))
    }

    pub(crate) fn delete_request(&self) -> Request {
        Request::delete_qdisc(self.link.index, Handle::ROOT)
    }

    /// Returns the token bucket of an HTB class; `None` if the class does not exist.
    pub(crate) fn class(&self, handle: Handle) -> Result<Option<HeldBucket>, Error> {
        let class = self.connection.class(self.link.index, handle)?;
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
            Case::Unlimited => ROOT,
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
