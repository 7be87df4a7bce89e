//! RELOAD: what ADD put into `nf_tables`, once more.

use anyhow::{Context as _, bail};
use cni::result::Interface;
use cni::{AddResult, CheckRequest, Error};
use netlink::{Connection, Link, MacAddress};
use netns::Netns;
use nft::Updated;

use crate::config::Config;
use crate::firewall::{self, Subject};
use crate::plan;
use crate::sandbox::Sandbox;

/// Puts back what guards the pair; what is there stays untouched. The delegate has nothing in a
/// firewall, and is not asked.
///
/// A DEL or GC deletes the port before it looks for elements. So one that looks too early to find what
/// is added here has deleted the port by then, and what was added is taken back.
///
/// # Errors
/// Code 7 where there is no `prevResult`; the pair is gone; whatever the kernel refuses.
pub(crate) fn reload(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network, &request.args()?)?;
    if !firewall::is_needed(&config) {
        return Ok(());
    }
    let reported = request.chained()?;
    let mac = container_mac(request, reported)?;
    let host = Connection::open()?;
    cni::step("find the port");
    let bridge = host.link(config.bridge.as_str())?;
    let find = || find_port((&host, &bridge), request, reported);
    let port = find()?.with_context(|| {
        let attachment = &request.attachment;
        format!("no port of {} is that of {attachment}", bridge.name)
    })?;
    let subject = Subject {
        bridge: &bridge,
        port: &port.name,
        mac,
        ips: &reported.ips,
        owner: &request.attachment.owner(),
    };
    cni::step("put back nf_tables elements");
    let wanted = firewall::wanted(&config, &subject)?;
    let updated = firewall::install(&wanted)?;
    let is_gone = || Ok(find()?.is_none());
    if is_gone()? {
        firewall::take_back(&wanted, is_gone)?;
        bail!("{} was deleted meanwhile", request.attachment);
    }
    if updated != Updated::Nothing && config.masquerade.is_some() {
        firewall::forget_unanswered(&reported.ips);
    }
    Ok(())
}

/// The MAC that ADD gave the container's link: one that the container chose since then must not
/// become the one that may send. Results of old versions tell none.
fn container_mac(request: &CheckRequest, reported: &AddResult) -> anyhow::Result<MacAddress> {
    let interface = &request.attachment.interface;
    let mut links = reported.interfaces.iter();
    let is_it = |it: &&Interface| it.sandbox.is_some() && it.name == interface.as_str();
    if let Some(mac) = links.find(is_it).and_then(|it| it.mac.as_deref()) {
        let invalid = |reason| Error::invalid("prevResult.interfaces", format!("{reason}"));
        return Ok(mac.parse().map_err(invalid)?);
    }
    let namespace = Netns::open(&request.netns).map_err(Error::sandbox)?;
    let link = Sandbox::open(&namespace, interface)?.find_link()?;
    let mac = link.and_then(|it| it.mac);
    mac.with_context(|| format!("{interface} in the sandbox is gone"))
}

/// The host's end, by the name that follows from the attachment or, where the reference made it, by
/// what was reported of it.
fn find_port(
    (host, bridge): (&Connection, &Link),
    request: &CheckRequest,
    reported: &AddResult,
) -> anyhow::Result<Option<Link>> {
    let owner = request.attachment.owner();
    let is_port = |link: &Link| link.master == Some(bridge.index);
    let ours = host.find_link(&plan::host_link_name(&request.attachment))?;
    let ours = ours.filter(|it| is_port(it) && it.alias.as_ref() == Some(&owner));
    if ours.is_some() {
        return Ok(ours);
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
