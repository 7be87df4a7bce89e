//! Redirects ingress packets of a link to another link, where they can queue.

use ipnetwork::IpNetwork;
use netlink::{Connection, Filter, Handle, HeldFilter, Link, Packets, Request};

use crate::{Case, Error, Traffic, module};

/// A link, for adding, reading and removing redirections of its ingress packets.
#[derive(Clone, Copy)]
pub struct LinkIngress<'a> {
    connection: &'a Connection,
    link: &'a Link,
}

/// State of the link's ingress qdisc, to which filters are attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// The qdisc exists, but has no redirections of this crate or of the Go plugin `bandwidth`.
    /// Another program may have created the qdisc.
    Found,
    /// The qdisc exists and has redirections of this crate or of the Go plugin `bandwidth`.
    Redirecting,
    /// The qdisc does not exist.
    Missing,
}

impl<'a> LinkIngress<'a> {
    /// Wraps the link and a connection to the link's namespace.
    pub fn new(connection: &'a Connection, link: &'a Link) -> Self {
        Self { connection, link }
    }

    /// Returns the state of the link's ingress qdisc. A redirection of the Go plugin `bandwidth`
    /// counts only if its target is `other` or a deleted link.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn find_hook(&self, other: &Link) -> Result<Hook, Error> {
        if !self.has_hook()? {
            return Ok(Hook::Missing);
        }
        let (ours, _) = self.filters(other.index)?;
        Ok(match ours.as_slice() {
            [] => Hook::Found,
            _ => Hook::Redirecting,
        })
    }

    fn has_hook(&self) -> Result<bool, Error> {
        let found = self.connection.qdisc(self.link.index, Handle::INGRESS)?;
        Ok(found.is_some())
    }

    /// Redirects `traffic` to the link `other`. Replaces earlier redirections of this crate, and
    /// those of the Go plugin `bandwidth` to `other` or to a deleted link. `before` is the result
    /// of an earlier call of [`Self::find_hook`].
    ///
    /// This function adds the new filters before it deletes the earlier ones. So each packet
    /// matches a new or an earlier filter at any moment, also after an error.
    ///
    /// # Errors
    /// [`Error::Lacks`] and [`Error::Netlink`]. Some filters may already exist after an error;
    /// [`Self::remove`] deletes them.
    pub fn ensure(&self, before: Hook, other: &Link, traffic: &Traffic) -> Result<(), Error> {
        let (ours, others) = match self.ensure_hook(before)? {
            Hook::Found | Hook::Redirecting => self.filters(other.index)?,
            Hook::Missing => Default::default(),
        };
        let taken = ours.iter().chain(&others).map(|it| it.priority).collect();
        let wanted = wanted(other, traffic, first_priority(taken));
        if do_the_same(&ours, &wanted) {
            return Ok(());
        }
        let (link, parent) = (self.link.index, Handle::INGRESS_FILTERS);
        let add = wanted
            .iter()
            .map(|it| Request::add_filter(link, parent, it));
        let added = self.connection.execute(add.collect::<Vec<_>>());
        added.map_err(|error| Error::of(module::MIRRED, error))?;
        self.delete(&ours)
    }

    /// Returns whether a filter of any program redirects packets to `other`.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn redirects_to(&self, other: &Link) -> Result<bool, Error> {
        let mut filters = self.held()?.into_iter().filter_map(|it| it.filter);
        Ok(filters.any(|it| it.redirect == Some(other.index)))
    }

    /// Deletes the redirections of this crate, and those of the Go plugin `bandwidth` to a deleted
    /// link. `before` is the state of the ingress qdisc before the call of [`Self::ensure`]. If it
    /// was [`Hook::Missing`] and other programs have added no filters since then, this function
    /// deletes the qdisc, too.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn remove(&self, before: Hook) -> Result<(), Error> {
        if !self.has_hook()? {
            return Ok(());
        }
        let (ours, mut others) = self.filters(0)?;
        // The kernel lists the filters and also one hash table for each priority. The hash tables
        // of the priorities in `ours` do not belong to other programs, so `others` loses them.
        others.retain(|other| ours.iter().all(|it| it.priority != other.priority));
        if before != Hook::Missing || !others.is_empty() {
            return self.delete(&ours);
        }
        let hook = Request::delete_qdisc(self.link.index, Handle::INGRESS);
        Ok(self.connection.execute(vec![hook])?)
    }

    /// Returns a text for the operator if the link's filters do not redirect exactly `traffic` to
    /// `other`; `None` if they do.
    ///
    /// # Errors
    /// [`Error::Netlink`].
    pub fn difference(&self, other: &Link, traffic: &Traffic) -> Result<Option<String>, Error> {
        let (ours, _) = self.filters(other.index)?;
        let (name, to) = (&self.link.name, &other.name);
        let difference = format!("packets that arrive at {name} are not redirected to {to}");
        let is_as_left = do_the_same(&ours, &wanted(other, traffic, 0));
        Ok((!is_as_left).then_some(difference))
    }

    /// Creates the ingress qdisc if `before` is [`Hook::Missing`]. Returns [`Hook::Found`] if
    /// another process created the qdisc at the same time, because the qdisc may then have filters.
    /// In all other cases, returns `before`.
    fn ensure_hook(&self, before: Hook) -> Result<Hook, Error> {
        if before != Hook::Missing {
            return Ok(before);
        }
        let ingress = Request::add_ingress(self.link.index);
        match self.connection.execute([ingress]) {
            // Another process created the qdisc first.
            Err(error) if error.is_already_exists() => Ok(Hook::Found),
            Err(error) => Err(Error::of(module::INGRESS, error)),
            Ok(()) => Ok(before),
        }
    }

    /// Returns two lists of filters: those that this crate may delete, and all others. The first
    /// list contains the filters of this crate. It also contains filters of the Go plugin
    /// `bandwidth` that redirect to the link with the index `other` or to a deleted link.
    fn filters(&self, other: u32) -> Result<(Vec<HeldFilter>, Vec<HeldFilter>), Error> {
        let is_ours = |held: &HeldFilter| {
            held.filter.is_some_and(|it| {
                it.class == MARK
                    || it.class == MARK_OF_REFERENCE
                        && it.redirect.is_some_and(|to| to == other || to == GONE)
            })
        };
        Ok(self.held()?.into_iter().partition(is_ours))
    }

    fn held(&self) -> Result<Vec<HeldFilter>, Error> {
        let parent = Handle::INGRESS_FILTERS;
        Ok(self.connection.filters(self.link.index, parent)?)
    }

    /// Deletes the filters. No other program adds filters with a priority that this crate chose, so
    /// one request deletes all filters of such a priority. Filters of the Go plugin `bandwidth`
    /// need one request each, because other programs may use their priority, too.
    fn delete(&self, filters: &[HeldFilter]) -> Result<(), Error> {
        let (link, parent) = (self.link.index, Handle::INGRESS_FILTERS);
        let is_marked = |held: &HeldFilter| held.filter.is_some_and(|it| it.class == MARK);
        let mut deleted = None;
        let mut delete = Vec::new();
        for held in filters {
            if !is_marked(held) {
                delete.push(Request::delete_filter(link, parent, held));
            } else if deleted.replace(held.priority) != Some(held.priority) {
                delete.push(Request::delete_priority(link, parent, held));
            }
        }
        Ok(self.connection.execute(delete)?)
    }
}

/// Returns whether the filters `held`, which exist in the kernel, have the same effect as the
/// filters `wanted`: they select the same packets and have the same targets, in the same order.
/// Classes and priorities may differ.
fn do_the_same(held: &[HeldFilter], wanted: &[Filter]) -> bool {
    let held = held.iter().filter_map(|it| it.filter);
    held.map(|it| (it.packets, it.redirect))
        .eq(wanted.iter().map(|it| (it.packets, it.redirect)))
}

/// Returns the filters that redirect `traffic` to `other`, in the order in which the kernel tries
/// them. All filters of one priority share a protocol. So the filters have three consecutive
/// priorities, starting with `first`: for IPv4, for IPv6 and for all remaining packets. Filters for
/// IPv4 and IPv6 match no packets with a VLAN tag, not even with VLAN 0.
fn wanted(other: &Link, traffic: &Traffic, first: u16) -> Vec<Filter> {
    let to = Some(other.index);
    let filter = |step, packets, redirect| Filter {
        priority: first.saturating_add(step),
        packets,
        class: MARK,
        redirect,
    };
    let by_subnet = |(subnet, case): (IpNetwork, Case)| {
        let redirect = match case {
            Case::Limited => to,
            // The kernel tries no further filter after this one, so no other filter redirects the
            // packet.
            Case::Free => None,
        };
        filter(u16::from(subnet.is_ipv6()), Packets::To(subnet), redirect)
    };
    let mut wanted: Vec<_> = traffic.cases().into_iter().map(by_subnet).collect();
    wanted.sort_by_key(|it| it.priority);
    wanted.push(filter(2, Packets::All, to));
    wanted
}

/// Returns the first of three consecutive priorities that are not in `taken`. The priorities
/// precede all of `taken` if possible, because packets that match an earlier filter of another
/// program are not limited.
fn first_priority(mut taken: Vec<u16>) -> u16 {
    taken.sort_unstable();
    let Some(lowest) = taken.first() else {
        return WITHOUT_OTHERS;
    };
    if let Some(first) = lowest.checked_sub(PRIORITIES).filter(|first| *first > 0) {
        return first;
    }
    let mut first = 1;
    for priority in taken {
        if priority.saturating_sub(first) >= PRIORITIES {
            break;
        }
        first = priority.saturating_add(1);
    }
    first
}

/// Number of priorities that the filters of this crate use.
const PRIORITIES: u16 = 3;
/// Priority of this crate's first filter if the link has no other filters. Other programs can still
/// add filters before and after this one. The kernel itself would choose a similar priority.
const WITHOUT_OTHERS: u16 = 0xc000;

/// Class that identifies the filters of this crate. No such class exists, so its number does not
/// affect packets.
const MARK: Handle = Handle::new(0xb0, 1);
/// Class of the filters that the Go plugin `bandwidth` adds.
const MARK_OF_REFERENCE: Handle = Handle::new(1, 1);

/// Link index that the kernel reports as the target of a redirection to a deleted link.
const GONE: u32 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_before_those_of_others_where_there_is_room() {
        for (taken, first) in [
            (vec![], 0xc000),
            (vec![0xc000], 0xbffd),
            (vec![4, 9], 1),
            (vec![3], 4),
            (vec![1, 2, 49_152], 3),
            (vec![1, 4, 8], 5),
            (vec![7, 1, 4], 8),
        ] {
            assert_eq!(first_priority(taken.clone()), first, "{taken:?}");
        }
    }
}
