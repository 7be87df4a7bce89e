//! The redirection of a link's ingress packets to an ifb, where the Go plugin `bandwidth` limits what
//! a container sends.

use netlink::{Connection, Handle, HeldFilter, Link, QdiscKind, Request};

use crate::Error;

/// A link, for reading and removing redirections of its ingress packets.
#[derive(Clone, Copy)]
pub struct LinkIngress<'a> {
    connection: &'a Connection,
    link: &'a Link,
}

impl<'a> LinkIngress<'a> {
    /// Wraps the link and a connection to the link's namespace.
    pub fn new(connection: &'a Connection, link: &'a Link) -> Self {
        Self { connection, link }
    }

    /// Returns whether a filter redirects packets to `ifb`.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn redirects_to(&self, ifb: &Link) -> Result<bool, Error> {
        let mut filters = self.filters()?.into_iter();
        Ok(filters.any(|it| it.redirect == Some(ifb.index)))
    }

    /// Deletes the filters that redirect packets to `ifb`. If no other filters remain, also deletes
    /// the qdisc `ingress`, which the Go plugin leaves behind: it keeps other programs from creating
    /// the qdisc `clsact`.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn remove(&self, ifb: &Link) -> Result<(), Error> {
        let filters = self.filters()?;
        let is_meant = |it: &HeldFilter| it.redirect == Some(ifb.index);
        let filters = filters.into_iter().filter(HeldFilter::is_filter);
        let (ours, others): (Vec<_>, Vec<_>) = filters.partition(is_meant);
        let link = self.link.index;
        let root = self.connection.qdisc(link, Handle::INGRESS)?;
        let is_ingress = root.is_some_and(|it| it.kind == QdiscKind::Other("ingress".to_owned()));
        let requests: Vec<_> = if is_ingress && others.is_empty() {
            vec![Request::delete_qdisc(link, Handle::INGRESS)]
        } else {
            let delete = |it| Request::delete_filter(link, Handle::INGRESS_FILTERS, it);
            ours.iter().map(delete).collect()
        };
        Ok(self.connection.execute(requests)?)
    }

    fn filters(&self) -> Result<Vec<HeldFilter>, Error> {
        let parent = Handle::INGRESS_FILTERS;
        Ok(self.connection.filters(self.link.index, parent)?)
    }
}
