//! RELOAD: restores the `nf_tables` elements that ADD added.

use anyhow::{Context as _, bail};
use cni::keys::KNOWN_ARGS;
use cni::{AddResult, CheckRequest, Error};
use netlink::{Connection, Link, MacAddress};
use netns::Netns;
use nft::Updated;

use crate::addressing::own_ips;
use crate::sandbox::Sandbox;
use crate::standby::{Precedence, standby};
use crate::{Addressing, Differences, Protection, Removal, Topology, find_host_link, guard};

/// Restores the `nf_tables` elements of the veth pair that are missing or differ. RELOAD is a verb
/// of this suite, for use after a reload of the host's firewall. It does not call the IPAM plugin,
/// because IPAM plugins have no firewall rules.
///
/// RELOAD needs no lock against DEL and GC, because they delete the veth pair before they look for
/// elements. If they looked before RELOAD added its elements, RELOAD finds that the pair is gone,
/// and removes its elements again.
///
/// # Errors
/// - Code 7: `prevResult` is missing.
/// - Code 100: the veth pair or its bridge does not exist.
/// - Code 100: the kernel refuses a request.
pub(crate) fn reload<T: Topology>(request: &CheckRequest) -> anyhow::Result<()> {
    request.args()?.expect_only(KNOWN_ARGS)?;
    let topology = T::parse(&request.network)?;
    if !topology.guard().is_needed() {
        return Ok(());
    }
    let reported = request.chained()?;
    let mac = container_mac(request, reported)?;
    let host = Connection::open()?;
    cni::step("find the port");
    let mut differences = Differences::default();
    let Some(side) = topology.find_host_side(&host, &mut differences)? else {
        bail!("{}", differences.join());
    };
    let place = reported.in_sandbox(&request.attachment.interface);
    let addressing = Addressing {
        ips: own_ips(reported, place.map(|it| it.0)).cloned().collect(),
        ..Addressing::default()
    };
    let desired = topology.desired(side, addressing);
    let bridge = desired.side.bridge.as_ref();
    let find = || find_port(&host, bridge, request, reported);
    let port = find()?.with_context(|| {
        let attachment = &request.attachment;
        match bridge {
            Some(bridge) => format!("no port of {} belongs to {attachment}", bridge.name),
            None => format!("no link of the host belongs to {attachment}"),
        }
    })?;
    cni::step("put back nf_tables elements");
    let wanted = desired.protections(&port.name, mac, &request.attachment.owner())?;
    let updated = guard::install(&wanted, &port.name, Precedence::StandBy)?;
    let is_gone = || Ok(find()?.is_none());
    if is_gone()? {
        take_back(wanted, &port.name, is_gone)?;
        bail!("{} was deleted meanwhile", request.attachment);
    }
    if updated != Updated::Nothing && desired.guard.masquerade.is_some() {
        guard::forget_unanswered(&desired.container.addressing.ips);
    }
    Ok(())
}

/// Removes all elements that [`guard::install`] may have added for `wanted`, as
/// [`guard::take_back`] does, and gives their addresses to attachments that stand by for them. If
/// another attachment held an address, `install` added an element to the map `standby` instead of
/// the element in `wanted`. So this function removes both.
fn take_back(
    mut wanted: Vec<Protection>,
    port: &str,
    is_gone: impl Fn() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    for Protection { elements, .. } in &mut wanted {
        let standby: Vec<_> = elements.iter().filter_map(|it| standby(it, port)).collect();
        elements.extend(standby);
    }
    guard::take_back(&wanted, is_gone)?;
    Removal::start(guard::tables())?.remove(|_| false)
}

/// Returns the MAC that ADD gave the container's link. `reported`, the result of ADD, lists this
/// MAC. The link's current MAC does not count: the container may have changed it, and must not be
/// allowed to send from the changed MAC. A result before CNI version 0.3.0 lists no MAC; the
/// function then returns the current one.
fn container_mac(request: &CheckRequest, reported: &AddResult) -> anyhow::Result<MacAddress> {
    let interface = &request.attachment.interface;
    let link = reported.in_sandbox(interface);
    if let Some(mac) = link.and_then(|(_, it)| it.mac.as_deref()) {
        let invalid = |reason| Error::invalid("prevResult.interfaces", format!("{reason}"));
        return Ok(mac.parse().map_err(invalid)?);
    }
    let namespace = Netns::open(&request.netns).map_err(Error::sandbox)?;
    let link = Sandbox::open(&namespace, interface)?.find_link()?;
    let mac = link.and_then(|it| it.mac);
    mac.with_context(|| format!("{interface} in the sandbox is gone"))
}

/// Returns the host's end of the attachment's veth pair. Returns `None` if there is no such link,
/// or if the network has a bridge and the link is not a port of this `bridge`.
///
/// The function first looks for the link that this suite created, as DEL does, so an operator may
/// have renamed it or replaced its alias. If there is none, it looks for the link that a Go plugin
/// created: without an alias, and with a name and MAC that `reported`, the result of ADD, lists.
fn find_port(
    host: &Connection,
    bridge: Option<&Link>,
    request: &CheckRequest,
    reported: &AddResult,
) -> anyhow::Result<Option<Link>> {
    let is_port = |link: &Link| bridge.is_none_or(|it| link.master == Some(it.index));
    if let Some(ours) = find_host_link(host, &request.attachment)?.filter(is_port) {
        return Ok(Some(ours));
    }
    for interface in reported.interfaces.iter().filter(|it| it.sandbox.is_none()) {
        let mac = interface.mac.as_deref().and_then(|mac| mac.parse().ok());
        let found = host.find_link(&interface.name)?;
        let foreign = found.filter(|it| is_port(it) && it.alias.is_none() && it.mac == mac);
        if foreign.is_some() {
            return Ok(foreign);
        }
    }
    Ok(None)
}
