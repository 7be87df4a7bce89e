//! CHECK compares the link in the sandbox with the configuration and the result of ADD; STATUS reports
//! whether an ADD can succeed.

use std::mem;

use cni::{CheckRequest, CniArgs, Error, StatusRequest, Verb};
use netlink::{Connection, Link};

use super::desired::{Kind, Mac, Place, SandboxLink, Single};
use crate::Differences;
use crate::check::compare_link;
use crate::del::forward;

/// Calls CHECK of the IPAM plugin first, then compares kind, parent, MAC, state, addresses and
/// routes of the link.
///
/// # Errors
/// - Codes 2, 4 and 7: the configuration or an argument is invalid, or `prevResult` is missing.
/// - Code 100: the attachment differs. One error names all differences.
/// - The error of the IPAM plugin, with its code.
pub fn check<P: SandboxLink>(request: &CheckRequest) -> anyhow::Result<()> {
    let desired = P::parse(&request.network, &request.args()?)?;
    let expected = request.chained()?;
    cni::step("ask the IPAM plugin");
    forward(&request.network, Verb::Check)?;
    cni::step("compare");
    compare_link(request, expected, |link, reported, sandbox, found| {
        // The MAC of a parent may change after ADD.
        if desired.mac != Mac::OfParent {
            found.compare_mac(link, reported);
        }
        compare(&desired, (link, sandbox), found)
    })
}

fn compare(
    desired: &Single,
    (link, sandbox): (&Link, &Connection),
    found: &mut Differences,
) -> anyhow::Result<()> {
    let name = &link.name;
    found.unless(desired.is_kind(&link.kind), || {
        let expected = desired.words(None);
        format!("{name} in the sandbox is {}, not {expected}", link.kind)
    });
    if let Kind::Tap(tap) = &desired.kind {
        tap.compare(link, sandbox, found)?;
    }
    found.unless(link.is_up, || format!("{name} in the sandbox is down"));
    // The link of the default route may have changed since ADD, so only a named parent counts.
    let named = desired.parent.as_ref().and_then(|it| it.name.as_ref());
    if named.is_none() {
        return Ok(());
    }
    let host = Connection::open()?;
    match desired.find_parent([&host, sandbox], None) {
        Ok(parent) => found.unless(parent.is_some_and(|it| is_above(link, &it)), || {
            let named = named.map(ToString::to_string).unwrap_or_default();
            format!("{name} is not a link of {named}")
        }),
        Err(error) => found.add(format!("{error:#}")),
    }
    Ok(())
}

/// Returns whether `link` is above `parent`, or above the same link as `parent`: the kernel makes a
/// macvlan or ipvlan link above another one so.
fn is_above(link: &Link, parent: &Link) -> bool {
    let is_same = mem::discriminant(&link.kind) == mem::discriminant(&parent.kind);
    link.peer == Some(parent.index) || is_same && link.peer == parent.peer
}

/// Checks whether the parent exists, if it is one of the host, and whether the host can make tap
/// links as asked, then calls STATUS of the IPAM plugin.
///
/// # Errors
/// - The configuration is invalid.
/// - Code 50: each ADD would fail.
/// - The error of the IPAM plugin, with its code.
pub fn status<P: SandboxLink>(request: &StatusRequest) -> anyhow::Result<()> {
    let desired = P::parse(&request.network, &CniArgs::default())?;
    if let Some(parent) = desired.parent.filter(|it| it.place == Place::Host) {
        let found = parent.find(&Connection::open()?, None);
        found.map_err(Error::unavailable)?;
    }
    if let Kind::Tap(tap) = &desired.kind {
        tap.expect_possible().map_err(Error::unavailable)?;
    }
    cni::step("ask the IPAM plugin");
    forward(&request.network, Verb::Status)
}
