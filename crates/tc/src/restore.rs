//! Reads what limits a link before a change, so that a failure can restore it.

use netlink::{Handle, HeldBucket, Place, Qdisc, QdiscKind, Request, TokenBucket};

use crate::before::{Before, Held};
use crate::error::Error;
use crate::link_egress::{CLASS, LinkEgress, ROOT};

impl LinkEgress<'_> {
    /// Returns the present limit of the link.
    ///
    /// # Errors
    /// [`Error::Foreign`] and [`Error::Netlink`].
    pub fn before(&self) -> Result<Before, Error> {
        let held = self.held()?;
        let is_htb = |it: &Qdisc| matches!(it.kind, QdiscKind::Htb { .. });
        if !held.root.as_ref().is_some_and(is_htb) {
            return Ok(Before {
                held,
                ..Before::default()
            });
        }
        let class = self.connection.class(self.link.index, CLASS)?;
        let class = class.and_then(|it| match it.kind {
            QdiscKind::Htb { class, .. } => class,
            _ => None,
        });
        let filters = self.connection.filters(self.link.index, ROOT)?;
        Ok(Before {
            held,
            class,
            filters: filters.into_iter().filter_map(|it| it.filter).collect(),
        })
    }

    /// Restores the limit that the link had before a change; without one, removes the limit of this
    /// crate or of the reference. Changes only what differs.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn restore(&self, before: &Before) -> Result<(), Error> {
        let Some(root) = &before.held.root else {
            return self.remove();
        };
        let now = self.before()?;
        if now == *before {
            return Ok(());
        }
        let mut requests = Vec::new();
        if now.tree() != before.tree() || now.may_stop_in(before) {
            let all = now.held.root.map(|_| self.delete_request());
            requests.extend(all);
            requests.extend(self.tree_requests(before));
        }
        requests.extend(self.limit_requests(before, root));
        Ok(self.connection.execute(requests)?)
    }

    /// Returns the requests that create the HTB and its filters. A TBF needs none.
    fn tree_requests(&self, before: &Before) -> Vec<Request> {
        let Some((_, Some(default))) = before.tree().0 else {
            return Vec::new();
        };
        let link = self.link.index;
        let root = Request::add_htb(Place::new(link, Handle::ROOT, ROOT), default);
        let class = before.class.map(|it| self.class_request(&self.set(it)));
        let filters = before.filters.iter();
        let filters = filters.map(|it| Request::add_filter(link, ROOT, it));
        [root].into_iter().chain(class).chain(filters).collect()
    }

    /// Returns the requests that set the buckets and the fair queue below `root`.
    fn limit_requests(&self, before: &Before, root: &Qdisc) -> Vec<Request> {
        let link = self.link.index;
        let Held { first, second, .. } = &before.held;
        let (tbf, parent, leaf) = match root.kind {
            QdiscKind::Tbf(_) => (Some(root), Handle::ROOT, first),
            _ => (first.as_ref(), CLASS, second),
        };
        let class = before.class.map(|it| self.class_request(&self.set(it)));
        let tbf = tbf.and_then(|it| match it.kind {
            QdiscKind::Tbf(held) => {
                let place = Place::new(link, parent, it.handle);
                Some((it.handle, Request::set_tbf(place, &self.set(held))))
            }
            _ => None,
        });
        let leaf = leaf.as_ref().zip(tbf.as_ref());
        let leaf = leaf.and_then(|(leaf, (above, _))| match &leaf.kind {
            QdiscKind::FqCodel(held) => {
                let place = Place::new(link, Handle::new(above.major, 1), leaf.handle);
                Some(Request::set_fq_codel(place, held))
            }
            _ => None,
        });
        let tbf = tbf.as_ref().map(|(_, request)| request.clone());
        class.into_iter().chain(tbf).chain(leaf).collect()
    }

    fn set(&self, held: HeldBucket) -> TokenBucket {
        held.to_set(self.link.mtu.saturating_add(FRAME))
    }
}

/// Bytes of an Ethernet header with two VLAN tags.
const FRAME: u32 = 22;
