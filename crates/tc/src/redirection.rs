//! The redirection of a link's ingress packets to an ifb, where the Go plugin `bandwidth` limits what
//! a container sends.

use netlink::{Connection, Handle, HeldFilter, Link, QdiscKind, Request};

use crate::Error;

/// Returns whether a filter redirects the ingress packets of `link` to `ifb`.
///
/// # Errors
/// [`Error::Netlink`].
pub fn redirects(connection: &Connection, link: &Link, ifb: &Link) -> Result<bool, Error> {
    let filters = connection.filters(link.index, Handle::INGRESS_FILTERS)?;
    Ok(filters.iter().any(|it| it.redirect == Some(ifb.index)))
}

/// Deletes the filters that redirect the ingress packets of `link` to `ifb`. If no other filters
/// remain, also deletes the qdisc `ingress`, which the Go plugin leaves behind: it keeps other programs
/// from creating the qdisc `clsact`.
///
/// # Errors
/// [`Error::Netlink`].
pub fn stop_redirecting(connection: &Connection, link: &Link, ifb: &Link) -> Result<(), Error> {
    let (link, parent) = (link.index, Handle::INGRESS_FILTERS);
    let filters = connection.filters(link, parent)?.into_iter();
    let (ours, others): (Vec<_>, Vec<_>) = filters
        .filter(HeldFilter::is_filter)
        .partition(|it| it.redirect == Some(ifb.index));
    let root = connection.qdisc(link, Handle::INGRESS)?;
    let is_ingress = root.is_some_and(|it| it.kind == QdiscKind::Other("ingress".to_owned()));
    let requests: Vec<_> = if is_ingress && others.is_empty() {
        vec![Request::delete_qdisc(link, Handle::INGRESS)]
    } else {
        let delete = |it| Request::delete_filter(link, parent, it);
        ours.iter().map(delete).collect()
    };
    Ok(connection.execute(requests)?)
}
