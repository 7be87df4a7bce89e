//! Queues packets that leave by a link.
//!
//! A limit for all traffic uses one token bucket filter (TBF). A limit for a part of the traffic
//! uses HTB with one limited class, and filters that classify packets; other packets bypass the
//! class. An HTB class lets a segment of 64 KiB pass in one piece, which is half a second's data at
//! 1 Mbit/s. So the class contains a TBF that never delays packets but splits segments.

use ipnetwork::IpNetwork;
use netlink::{
    Connection, Filter, Handle, HeldBucket, Link, Packets, Place, Qdisc, QdiscKind, Request,
    TokenBucket,
};

use crate::error::{Error, module};
use crate::limit::{BitsPerSecond, Limit};
use crate::traffic::Traffic;

/// A link whose egress packets are limited.
#[derive(Clone, Copy)]
pub struct LinkEgress<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) link: &'a Link,
}

impl<'a> LinkEgress<'a> {
    /// Wraps the link and a connection to the link's namespace.
    pub fn new(connection: &'a Connection, link: &'a Link) -> Self {
        Self { connection, link }
    }

    /// Limits `traffic` to `limit` and replaces earlier limits of this crate.
    ///
    /// # Errors
    /// [`Error::Foreign`], [`Error::Lacks`] and [`Error::Netlink`].
    pub fn ensure(&self, limit: &Limit, traffic: &Traffic) -> Result<(), Error> {
        let (root, bucket) = (self.root()?, limit.bucket());
        let difference = self.difference_of(root.as_ref(), &bucket, traffic)?;
        if difference.is_none() {
            return Ok(());
        }
        let handle = match root {
            // The kernel can change the parameters of an existing TBF.
            Some(Qdisc {
                handle,
                kind: QdiscKind::Tbf(_),
            }) if *traffic == Traffic::All => handle,
            Some(_) => {
                self.delete_root()?;
                ROOT
            }
            None => ROOT,
        };
        let place = Place::new(self.link.index, Handle::ROOT, handle);
        if *traffic == Traffic::All {
            return self.execute(module::TBF, &[Request::set_tbf(place, &bucket)]);
        }
        self.add_class(place, &bucket, traffic)
    }

    /// Returns the request that limits all traffic of a new link. A new link has no qdisc to
    /// compare with, so the caller can send the request together with others.
    pub fn first(link: &Link, limit: &Limit) -> Request {
        Request::set_tbf(Place::new(link.index, Handle::ROOT, ROOT), &limit.bucket())
    }

    /// Removes a limit of this crate or of the reference; qdiscs of other programs stay.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn remove(&self) -> Result<(), Error> {
        match self.root() {
            Err(Error::Foreign { .. }) | Ok(None) => Ok(()),
            Err(error) => Err(error),
            Ok(Some(_)) => self.delete_root(),
        }
    }

    /// Returns a text for the operator about what [`Self::ensure`] would change; `None` if nothing.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn difference(&self, limit: &Limit, traffic: &Traffic) -> Result<Option<String>, Error> {
        match self.root() {
            Err(Error::Foreign { link, kind, handle }) => Ok(Some(format!(
                "{link} has qdisc {kind} {handle} of another program"
            ))),
            root => self.difference_of(root?.as_ref(), &limit.bucket(), traffic),
        }
    }

    fn difference_of(
        &self,
        root: Option<&Qdisc>,
        bucket: &TokenBucket,
        traffic: &Traffic,
    ) -> Result<Option<String>, Error> {
        let name = &self.link.name;
        let (is_as_left, difference) = match (traffic, root.map(|it| &it.kind)) {
            (Traffic::All, Some(QdiscKind::Tbf(held))) => (
                holds(held, bucket),
                format!("{name} has {held}, not {bucket}"),
            ),
            (Traffic::Only(_) | Traffic::AllBut(_), Some(QdiscKind::Htb { default, .. })) => {
                let is_as_left = *default == default_class(traffic)
                    && self.is_class_as_left(bucket)?
                    && self.has_filters(traffic)?;
                let difference = format!("the limit of {name} is not {bucket} for these subnets");
                (is_as_left, difference)
            }
            _ => (false, format!("{name} has no limit")),
        };
        Ok((!is_as_left).then_some(difference))
    }

    /// Returns the root qdisc if this crate or the reference set it; `None` for the kernel's
    /// default qdisc.
    ///
    /// # Errors
    /// [`Error::Foreign`]: another program set the root qdisc.
    fn root(&self) -> Result<Option<Qdisc>, Error> {
        let Some(root) = self.connection.qdisc(self.link.index, Handle::ROOT)? else {
            return Ok(None);
        };
        // The kernel's default qdisc has no handle.
        if root.handle.major == 0 {
            return Ok(None);
        }
        if is_known(&root) {
            return Ok(Some(root));
        }
        Err(Error::Foreign {
            link: self.link.name.clone(),
            kind: root.kind.to_string(),
            handle: root.handle,
        })
    }

    /// Limits some traffic of a link that has no qdisc yet.
    fn add_class(&self, root: Place, bucket: &TokenBucket, traffic: &Traffic) -> Result<(), Error> {
        let class = Place::new(self.link.index, ROOT, CLASS);
        let classes = [
            Request::add_htb(root, default_class(traffic)),
            Request::set_htb_class(class, bucket),
        ];
        self.execute(module::HTB, &classes)?;
        let leaf = Place::new(self.link.index, CLASS, LEAF);
        let segments = Request::set_tbf(leaf, &segmenter(bucket));
        self.execute(module::TBF, &[segments])?;
        let filters = wanted_filters(traffic);
        let filters = filters.iter();
        let filters = filters.map(|it| Request::add_filter(self.link.index, ROOT, it));
        self.execute(module::U32, &filters.collect::<Vec<_>>())
    }

    fn delete_root(&self) -> Result<(), Error> {
        let root = Request::delete_qdisc(self.link.index, Handle::ROOT);
        Ok(self.connection.execute([root])?)
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

    /// Returns the limit of this crate's HTB class.
    fn class(&self) -> Result<Option<HeldBucket>, Error> {
        let class = self.connection.class(self.link.index, CLASS)?;
        Ok(class.and_then(|it| match it.kind {
            QdiscKind::Htb { class, .. } => class,
            _ => None,
        }))
    }

    fn has_filters(&self, traffic: &Traffic) -> Result<bool, Error> {
        let held = self.connection.filters(self.link.index, ROOT)?;
        let held = held.iter().filter_map(|it| it.filter);
        Ok(held.eq(wanted_filters(traffic)))
    }

    fn execute(&self, module: &'static str, requests: &[Request]) -> Result<(), Error> {
        let done = self.connection.execute(requests);
        done.map_err(|error| Error::of(module, error))
    }
}

/// Returns whether this crate or the reference set the root qdisc.
pub(crate) fn is_known(root: &Qdisc) -> bool {
    let of_reference = matches!(root.kind, QdiscKind::Tbf(_));
    match root.handle.major {
        OURS => true,
        MAJOR_OF_REFERENCE => of_reference,
        _ => false,
    }
}

fn holds(held: &HeldBucket, wanted: &TokenBucket) -> bool {
    wanted.is_held_by(held) && wanted.limit == held.limit
}

/// Returns the minor number of the class for packets that match no filter: the limited class, or 0
/// (no class).
fn default_class(traffic: &Traffic) -> u32 {
    match traffic {
        Traffic::Only(_) => 0,
        Traffic::All | Traffic::AllBut(_) => CLASS.minor.into(),
    }
}

/// Returns the filters for `traffic`: one for each subnet. IPv4 and IPv6 have priorities of their
/// own, because all filters of one priority share a protocol.
fn wanted_filters(traffic: &Traffic) -> Vec<Filter> {
    let class = match traffic {
        Traffic::Only(_) => CLASS,
        // Packets that a filter assigns to the root qdisc bypass the class.
        Traffic::All | Traffic::AllBut(_) => ROOT,
    };
    let filter = |subnet: &IpNetwork| Filter {
        priority: if subnet.is_ipv4() { 1 } else { 2 },
        packets: Packets::From(*subnet),
        class,
        redirect: None,
    };
    let mut filters: Vec<_> = traffic.subnets().iter().map(filter).collect();
    filters.sort_by_key(|it| it.priority);
    filters
}

fn segmenter(bucket: &TokenBucket) -> TokenBucket {
    TokenBucket {
        rate: BitsPerSecond::MAX.bytes(),
        ..*bucket
    }
}

/// Major number of this crate's qdiscs. Other programs are unlikely to choose this number.
const OURS: u16 = 0xb0;

/// Major number of the reference's qdiscs.
pub(crate) const MAJOR_OF_REFERENCE: u16 = 1;

const ROOT: Handle = Handle::new(OURS, 0);
/// The class for limited traffic.
pub(crate) const CLASS: Handle = Handle::new(OURS, 1);
const LEAF: Handle = Handle::new(OURS + 1, 0);
