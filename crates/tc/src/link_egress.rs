//! Queues packets that leave by a link.
//!
//! A limit for all traffic uses one token bucket filter (TBF). A limit for a part of the traffic
//! uses HTB with one limited class, and filters that classify packets; other packets bypass the
//! class. Such a class lets a segment of 64 KiB pass in one piece, half a second's worth at low
//! rates. So the class contains a TBF that never delays packets but splits segments.

use netlink::{Connection, Filter, Handle, Link, Packets, Place, Qdisc, QdiscKind, Request};
use netlink::{HeldBucket, HeldFilter, TokenBucket};

use crate::error::{Error, Module};
use crate::limit::{BitsPerSecond, Limit};
use crate::traffic::Traffic;

/// A link whose egress packets are limited.
#[derive(Clone, Copy)]
pub struct LinkEgress<'a> {
    /// Connection to the link's namespace.
    pub connection: &'a Connection,
    /// The link itself.
    pub link: &'a Link,
}

impl LinkEgress<'_> {
    /// Limits `traffic` to `limit` and replaces earlier limits of this crate.
    ///
    /// # Errors
    /// [`Error::Foreign`] and [`Error::Lacks`].
    pub fn ensure(&self, limit: &Limit, traffic: &Traffic) -> Result<(), Error> {
        let bucket = limit.bucket();
        let root = self.root()?;
        match traffic {
            Traffic::All => self.ensure_bucket(root.as_ref(), &bucket),
            _ => self.ensure_class(root.as_ref(), &bucket, traffic),
        }
    }

    /// Returns the request that limits all traffic of a new link, on which there is nothing to
    /// compare with. The caller sends it together with others.
    pub fn first(link: &Link, limit: &Limit) -> Request {
        let place = Place {
            link: link.index,
            parent: Handle::ROOT,
            handle: ROOT,
        };
        Request::set_tbf(place, &limit.bucket())
    }

    /// Removes the limit; qdiscs of other programs stay.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn remove(&self) -> Result<(), Error> {
        match self.root() {
            Err(Error::Foreign { .. }) | Ok(None) => Ok(()),
            Err(error) => Err(error),
            Ok(Some(_)) => {
                let root = Request::delete_qdisc(self.link.index, Handle::ROOT);
                Ok(self.connection.execute(vec![root])?)
            }
        }
    }

    /// Returns the rate limit of the link's egress, of all or some traffic, in bits per second.
    /// Returns `None` without a limit and for another program's limit.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn rate(&self) -> Result<Option<u64>, Error> {
        let root = match self.root() {
            Err(Error::Foreign { .. }) => return Ok(None),
            root => root?,
        };
        let held = match root.map(|it| it.kind) {
            Some(QdiscKind::Tbf(held)) => Some(held),
            Some(QdiscKind::Htb { .. }) => self.class()?,
            _ => None,
        };
        Ok(held.map(|it| it.rate.saturating_mul(8)))
    }

    /// Returns messages about what [`Self::ensure`] would change.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn differences(&self, limit: &Limit, traffic: &Traffic) -> Result<Vec<String>, Error> {
        let (name, bucket) = (&self.link.name, limit.bucket());
        let held = match self.root() {
            Err(Error::Foreign { kind, handle, .. }) => {
                return Ok(vec![format!(
                    "{name} has qdisc {kind} {handle} of another program"
                )]);
            }
            root => root?,
        };
        let root = held.as_ref().map(|it| &it.kind);
        match (traffic, root) {
            (Traffic::All, Some(QdiscKind::Tbf(held))) if holds(held, &bucket) => Ok(vec![]),
            (Traffic::All, Some(QdiscKind::Tbf(held))) => {
                Ok(vec![format!("{name} has {held}, not {bucket}")])
            }
            (Traffic::Only(_) | Traffic::AllBut(_), Some(QdiscKind::Htb { default, .. })) => {
                let is_as_left = *default == default_class(traffic)
                    && self.is_class_as_left(&bucket)?
                    && are_same(&self.filters()?, &wanted_filters(traffic));
                let difference = format!("the limit of {name} is not {bucket} for these subnets");
                Ok((!is_as_left).then_some(difference).into_iter().collect())
            }
            _ => Ok(vec![format!("{name} has no limit")]),
        }
    }

    /// Returns the root qdisc if it is this crate's or the reference's.
    fn root(&self) -> Result<Option<Qdisc>, Error> {
        let Some(root) = self.connection.qdisc(self.link.index, Handle::ROOT)? else {
            return Ok(None);
        };
        match (root.handle.major, &root.kind) {
            // The kernel's default qdisc.
            (0, _) => Ok(None),
            (OURS, _) | (MAJOR_OF_REFERENCE, QdiscKind::Tbf(_)) => Ok(Some(root)),
            _ => Err(Error::Foreign {
                link: self.link.name.clone(),
                kind: root.kind.to_string(),
                handle: root.handle,
            }),
        }
    }

    fn ensure_bucket(&self, root: Option<&Qdisc>, bucket: &TokenBucket) -> Result<(), Error> {
        match root.map(|root| &root.kind) {
            Some(QdiscKind::Tbf(held)) if holds(held, bucket) => return Ok(()),
            None | Some(QdiscKind::Tbf(_)) => {}
            Some(_) => self.remove()?,
        }
        let handle = match root {
            Some(root) if matches!(root.kind, QdiscKind::Tbf(_)) => root.handle,
            _ => ROOT,
        };
        let set = Request::set_tbf(self.place(Handle::ROOT, handle), bucket);
        self.execute(Module::Tbf, set)
    }

    fn ensure_class(
        &self,
        root: Option<&Qdisc>,
        bucket: &TokenBucket,
        traffic: &Traffic,
    ) -> Result<(), Error> {
        let default = default_class(traffic);
        match root.map(|root| &root.kind) {
            Some(QdiscKind::Htb { default: held, .. }) if *held == default => {}
            found => {
                if found.is_some() {
                    self.remove()?;
                }
                let add = Request::add_htb(self.place(Handle::ROOT, ROOT), default);
                self.execute(Module::Htb, add)?;
            }
        }
        if !self.is_class_as_left(bucket)? {
            let class = Request::set_htb_class(self.place(ROOT, CLASS), bucket);
            self.execute(Module::Htb, class)?;
            let segments = Request::set_tbf(self.place(CLASS, LEAF), &segmenter(bucket));
            self.execute(Module::Tbf, segments)?;
        }
        self.ensure_filters(traffic)
    }

    fn ensure_filters(&self, traffic: &Traffic) -> Result<(), Error> {
        let (held, wanted) = (self.filters()?, wanted_filters(traffic));
        if are_same(&held, &wanted) {
            return Ok(());
        }
        let link = self.link.index;
        let mut stale = held;
        stale.dedup_by_key(|it| it.priority);
        let delete = stale.iter();
        let delete = delete.map(|it| Request::delete_priority(link, ROOT, it));
        self.connection.execute(delete.collect::<Vec<_>>())?;
        let add = wanted.iter().map(|it| Request::add_filter(link, ROOT, it));
        let added = self.connection.execute(add.collect::<Vec<_>>());
        added.map_err(|error| Error::of(Module::U32, error))
    }

    fn is_class_as_left(&self, bucket: &TokenBucket) -> Result<bool, Error> {
        if !self.class()?.is_some_and(|held| bucket.is_held_by(&held)) {
            return Ok(false);
        }
        let leaf = self.connection.qdisc(self.link.index, CLASS)?;
        Ok(leaf.is_some_and(|it| match it.kind {
            QdiscKind::Tbf(held) => holds(&held, &segmenter(bucket)),
            _ => false,
        }))
    }

    /// Returns the limit of the own class.
    fn class(&self) -> Result<Option<HeldBucket>, Error> {
        let class = self.connection.class(self.link.index, CLASS)?;
        Ok(class.and_then(|it| match it.kind {
            QdiscKind::Htb { class, .. } => class,
            _ => None,
        }))
    }

    fn filters(&self) -> Result<Vec<HeldFilter>, Error> {
        let filters = self.connection.filters(self.link.index, ROOT)?;
        Ok(filters
            .into_iter()
            .filter(|it| it.filter.is_some())
            .collect())
    }

    fn place(&self, parent: Handle, handle: Handle) -> Place {
        Place {
            link: self.link.index,
            parent,
            handle,
        }
    }

    fn execute(&self, module: Module, request: Request) -> Result<(), Error> {
        let done = self.connection.execute(vec![request]);
        done.map_err(|error| Error::of(module, error))
    }
}

fn holds(held: &HeldBucket, wanted: &TokenBucket) -> bool {
    wanted.is_held_by(held) && wanted.limit == held.limit
}

fn are_same(held: &[HeldFilter], wanted: &[Filter]) -> bool {
    held.iter()
        .filter_map(|it| it.filter)
        .eq(wanted.iter().copied())
}

/// Returns the class of unclassified packets: none, or the limited one.
fn default_class(traffic: &Traffic) -> u32 {
    match traffic {
        Traffic::Only(_) => 0,
        Traffic::All | Traffic::AllBut(_) => CLASS.minor.into(),
    }
}

/// Returns one filter per subnet. All filters of one priority share a protocol.
fn wanted_filters(traffic: &Traffic) -> Vec<Filter> {
    let class = match traffic {
        Traffic::Only(_) => CLASS,
        // The root itself stands for no class.
        Traffic::All | Traffic::AllBut(_) => ROOT,
    };
    let filter = |priority| {
        move |subnet: &_| Filter {
            priority,
            packets: Packets::From(*subnet),
            class,
            redirect: None,
        }
    };
    let (ipv4, ipv6): (Vec<_>, Vec<_>) = traffic.subnets().iter().partition(|it| it.is_ipv4());
    let ipv4 = ipv4.into_iter().map(filter(1));
    ipv4.chain(ipv6.into_iter().map(filter(2))).collect()
}

fn segmenter(bucket: &TokenBucket) -> TokenBucket {
    TokenBucket {
        rate: BitsPerSecond::MAX.bytes(),
        ..*bucket
    }
}

/// Major number of own qdiscs; other programs hardly choose it.
const OURS: u16 = 0xb0;

/// Major number of the reference's qdiscs.
pub(crate) const MAJOR_OF_REFERENCE: u16 = 1;

const ROOT: Handle = Handle::new(OURS, 0);
const CLASS: Handle = Handle::new(OURS, 1);
const LEAF: Handle = Handle::new(OURS + 1, 0);
