//! Creates the qdiscs of a link, and replaces those that cannot change in place.
//!
//! The kernel changes neither the kind of a root qdisc nor the default class of an HTB. So new
//! qdiscs are necessary when a limit has to apply to other traffic than before. One netlink
//! datagram contains the requests that delete the old qdiscs and create the new ones.

use netlink::{Filter, Handle, Place, Qdisc, QdiscKind, Request};

use crate::link_egress::{ROOT, default_class, wanted_filters};
use crate::queue::{Queue, Step};
use crate::{Error, Limit, LinkEgress, Traffic, module};

impl LinkEgress<'_> {
    /// Replaces `root` and all qdiscs below it by new ones, which limit `traffic` to `limit`. If
    /// the kernel deletes the old qdiscs but refuses some of the new ones, this function limits all
    /// traffic, so that the link does not stay without a limit.
    ///
    /// # Errors
    /// [`Error::Lacks`] and [`Error::Netlink`].
    pub(crate) fn replace(
        &self,
        root: &Qdisc,
        limit: &Limit,
        traffic: &Traffic,
    ) -> Result<(), Error> {
        let before = match root.kind {
            QdiscKind::Htb { .. } => Some(self.filters()?),
            _ => None,
        };
        let replaced = self.replace_by(limit, traffic);
        if replaced.is_err() {
            // The connection itself may have failed, so the repair uses a new connection.
            let connection = &self.end.connect()?;
            let again = LinkEgress::new(connection, self.link, self.end);
            if !again.is_whole(before.as_deref(), traffic)? {
                again.replace_by(limit, &Traffic::All)?;
            }
        }
        replaced
    }

    fn replace_by(&self, limit: &Limit, traffic: &Traffic) -> Result<(), Error> {
        let (queue, mut steps) = self.tree(limit, traffic);
        // If this call is a repair, the first call may already have deleted the root qdisc.
        let root = self.connection.qdisc(self.link.index, Handle::ROOT)?;
        if root.is_some_and(|it| it.handle.major != 0) {
            steps.insert(0, (module::TBF, self.delete_request()));
        }
        queue.carry_out(self.connection, steps)
    }

    /// Returns whether the link has a complete limit: a TBF, or an HTB with the limited class and
    /// all filters. The filters are complete if they equal the filters for `traffic`, or `before`,
    /// the filters of the earlier limit (`None` if the earlier limit was a TBF).
    fn is_whole(&self, before: Option<&[Filter]>, traffic: &Traffic) -> Result<bool, Error> {
        let held = self.held()?;
        match held.root.map(|it| it.kind) {
            None => Ok(false),
            Some(QdiscKind::Tbf(_)) => Ok(true),
            Some(_) => Ok(held.class.is_some()
                && (before == Some(self.filters()?.as_slice()) || self.has_filters(traffic)?)),
        }
    }

    /// Returns the requests that limit `traffic` of a link without a qdisc. Also returns the
    /// [`Queue`] whose [`Queue::carry_out`] sends the requests.
    pub(crate) fn tree(&self, limit: &Limit, traffic: &Traffic) -> (Queue, Vec<Step>) {
        let link = self.link.index;
        let queue = self.queue(ROOT, limit, traffic);
        let queues = queue.steps(None, None);
        if *traffic == Traffic::All {
            return (queue, queues);
        }
        let root = Place::new(link, Handle::ROOT, ROOT);
        let htb = Request::add_htb(root, default_class(traffic, self.end));
        let classes = [htb, self.class_request(limit)].map(|it| (module::HTB, it));
        let filters = wanted_filters(traffic, self.end).into_iter();
        let filters = filters.map(|it| (module::U32, Request::add_filter(link, ROOT, &it)));
        let steps = classes.into_iter().chain(queues).chain(filters);
        (queue, steps.collect())
    }
}
