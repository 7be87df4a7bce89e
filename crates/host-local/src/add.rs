//! ADD: leases one address of every range set.

use std::net::IpAddr;

use anyhow::ensure;
use cni::result::IpConfig;
use cni::{AddRequest, AddResult, Answer, Answered, Undo, note};
use ipnetwork::IpNetwork;
use nix::unistd::getppid;

use crate::range::RangeSet;
use crate::{Config, Holder, Origin, Store, boot, wanted};

/// Leases one address of every range set: the requested address if the request names one, else the
/// next free address.
///
/// # Errors
/// A failed call leaves no new lease.
///
/// - The configuration or the request is invalid.
/// - The attachment already holds addresses, and is not proven gone.
/// - A range set has no free address.
/// - The process that called this plugin has ended.
/// - A file cannot be written.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let parent = getppid();
    let config = Config::parse(&request.network)?;
    let wanted = wanted(request, &config.sets)?;
    let dns = config.dns()?;
    cni::step("wait for the lock");
    boot::mark();
    let origin = Origin::of(request);
    let store = Store::open(&config.storage, &request.network.name, origin)?;
    // The runtime may have killed the parent process, the plugin that called this one, while this
    // process waited for the lock. Then no DEL would release the addresses.
    let is_awaited = getppid() == parent;
    ensure!(is_awaited, "the process that asked for the lease is gone");
    cni::step("lease addresses");
    take_over(request, &store)?;
    let holder = Holder::of(&request.attachment);
    let mut undo = Undo::default();
    let mut ips = Vec::with_capacity(wanted.len());
    for wanted in &wanted {
        let lease = store.lease(wanted, &holder)?;
        ips.extend(ip_config(wanted.set, lease.address));
        let store = &store;
        undo.push("release the lease", move || store.cancel(&[lease]));
    }
    let result = AddResult {
        ips,
        routes: config.routes,
        dns,
        ..AddResult::default()
    };
    Ok(answer.give_and_keep(&result, undo)?)
}

/// Releases the leases that the attachment has, if it is gone: the runtime may have lost it without
/// a DEL.
///
/// # Errors
/// The attachment is not proven gone, or a lease cannot be read or released.
fn take_over(request: &AddRequest, store: &Store) -> anyhow::Result<()> {
    let attachment = &request.attachment;
    let held = store.leases_of(attachment)?;
    if held.is_empty() {
        return Ok(());
    }
    let addresses: Vec<_> = held.iter().map(|lease| lease.address.to_string()).collect();
    let addresses = addresses.join(", ");
    ensure!(
        store.is_gone(attachment, &held)?,
        "{attachment} holds {addresses} already; run DEL for it first: {}",
        cni::del_command(
            attachment,
            &store
                .sandbox_of(attachment)
                .unwrap_or(request.netns.clone())
        ),
    );
    note!("release {addresses}: the former sandbox of {attachment} is gone");
    store.release(&held)
}

fn ip_config(set: &RangeSet, address: IpAddr) -> Option<IpConfig> {
    let range = set.range_of(address)?;
    let address = IpNetwork::new(address, range.subnet.prefix()).ok()?;
    Some(IpConfig {
        gateway: range.gateway,
        ..IpConfig::of(address)
    })
}
