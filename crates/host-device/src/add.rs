//! ADD: writes the record, moves the device into the sandbox and configures it. A failed ADD brings
//! the device back as it was.

use std::cell::Cell;

use anyhow::{Context as _, bail, ensure};
use attach::{
    Addressing, Container, Gateway, Lease, Leased, Sandbox, Witness, interface as interface_of,
    placed, uses_link,
};
use cni::result::Interface;
use cni::{AddRequest, AddResult, Answer, Answered, Error, Undo};
use netlink::{Carrier, Connection, Link, Request, SavedAddress};
use netns::Netns;

use crate::config::{Config, Selector};
use crate::record::{self, Record};
use crate::{del, device, transfer};

/// Moves the device into the sandbox, brings it up, and gives it the leased addresses.
///
/// # Errors
/// - Codes 4 and 7: the configuration, the sandbox or the lease is invalid.
/// - Other codes: a step failed. The rollback has then brought the device back.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let config = Config::parse(&request.network)?;
    let lease = Lease::prepare(&request.network, Gateway::None)?;
    let namespace = Netns::open(&request.netns).map_err(Error::sandbox)?;
    let (leased, away) = (Leased::default(), Cell::new(false));
    let mut undo = Undo::default();
    let add = Add {
        request,
        config: &config,
        namespace: &namespace,
        leased: &leased,
        away: &away,
        uses_device: uses_link(&request.network)?,
    };
    // The rollback runs the newest step first: the device leaves before the address is free.
    if !add.uses_device {
        add.release_at_rollback(&mut undo);
    }
    let result = match config.device {
        Selector::UserSpace => add.without_link(lease, &mut undo)?,
        _ => add.with_device(lease, &mut undo)?,
    };
    Ok(answer.give_and_keep(&result, undo)?)
}

struct Add<'a> {
    request: &'a AddRequest,
    config: &'a Config,
    namespace: &'a Netns,
    /// Whether this ADD has a lease.
    leased: &'a Leased,
    /// Whether the device has left the host, or may have left it.
    away: &'a Cell<bool>,
    /// Whether the IPAM plugin uses the device to release the lease.
    uses_device: bool,
}

impl<'a> Add<'a> {
    /// Returns the result for a PCI device that a program such as DPDK uses: there is no link.
    fn without_link(&self, lease: Lease<'_>, undo: &mut Undo<'a>) -> anyhow::Result<AddResult> {
        let request = self.request;
        let owner = request.attachment.owner();
        let sandbox = Connection::open_in(self.namespace).map_err(Error::sandbox)?;
        let words = "device of a program".to_owned();
        let witness = Witness::new(self.namespace, &sandbox, words)?;
        let host = Connection::open()?;
        witness.numbered(&host, self.namespace)?.write(&owner)?;
        undo.push("remove the record", move || Witness::remove(&owner));
        if self.uses_device {
            self.release_at_rollback(undo);
        }
        let lease = self.lease(lease)?;
        let addressing = Addressing::of_lease(lease.as_ref(), u32::MAX)?;
        let interface = Interface {
            name: self.request.attachment.interface.to_string(),
            ..Interface::default()
        };
        Ok(self.result(interface, addressing, lease))
    }

    /// Makes the rollback release the lease, if this ADD has one.
    fn release_at_rollback(&self, undo: &mut Undo<'a>) {
        let (request, leased, away) = (self.request, self.leased, self.away);
        let uses_device = self.uses_device;
        undo.push("release the lease", move || {
            leased.release(&request.network, || {
                let may_release = uses_device || !away.get();
                let netns = request.netns.display();
                ensure!(
                    may_release,
                    "the device is not back from {netns}: the lease stays until DEL"
                );
                Ok(())
            })
        });
    }

    fn with_device(&self, lease: Lease<'_>, undo: &mut Undo<'a>) -> anyhow::Result<AddResult> {
        cni::step("find the device");
        let interface = &self.request.attachment.interface;
        let mut sandbox = Sandbox::open(self.namespace, interface)?;
        if let Some(link) = sandbox.find_link()? {
            let name = link.name;
            bail!("the sandbox has an interface {name} already; choose another name (CNI_IFNAME)");
        }
        let host = Connection::open()?;
        let link = self.claim(&host)?;
        let (lease, early) = match lease {
            Lease::AfterLink(_) => (lease, None),
            lease => (Lease::None, self.lease(lease)?),
        };
        // An unusable lease is found out before the device moves.
        Addressing::of_lease(early.as_ref(), link.mtu)?;
        let moved = self.move_in((&host, sandbox.connection()), &link, undo)?;
        let lease = match lease {
            Lease::None => early,
            lease => {
                if self.uses_device {
                    self.release_at_rollback(undo);
                }
                sandbox.bring_up(&moved, &Container::default())?;
                self.lease(lease)?
            }
        };
        let desired = Container {
            addressing: Addressing::of_lease(lease.as_ref(), link.mtu)?,
            // Hosts of the device's network may have the same addresses: so `dad` stays on.
            ..Container::default()
        };
        cni::step("configure the sandbox");
        let moved = configure(&mut sandbox, &moved, &desired)?;
        Ok(self.result(interface_of(&moved), desired.addressing, lease))
    }

    /// Calls the IPAM plugin. Returns `None` if the network has none.
    fn lease(&self, lease: Lease<'_>) -> Result<Option<AddResult>, Error> {
        cni::step("lease addresses");
        self.leased.obtain(lease)
    }

    /// Returns the host's link that the configuration names, after it has restored returned devices.
    fn claim(&self, host: &Connection) -> anyhow::Result<Link> {
        let mut records = transfer::reclaim(host)?;
        let owner = self.request.attachment.owner();
        if records.iter().any(|it| it.0 == owner && it.1.has_left) {
            bail!(
                "{} has a device already; DEL it first",
                self.request.attachment
            );
        }
        records.retain(|it| it.0 != owner);
        let selector = &self.config.device;
        let mut link = device::find(host, selector)?.with_context(|| {
            let held = records.iter().find(|it| it.1.is_named(selector));
            let next = match held {
                Some((owner, record)) => {
                    let sandbox = record.netns.display();
                    format!("{owner} has it in {sandbox}: DEL that first, or choose another device")
                }
                None => "`ip link` lists its links".to_owned(),
            };
            format!("the host has no {selector}; {next}")
        })?;
        records.retain(|it| it.1.has_left && it.1.device.name == link.name);
        for (owner, record) in records {
            match record.device.find_on_host(host)? {
                // It may have returned just now. The new record describes it as it could be restored.
                Some(returned) if returned.index == link.index => {
                    transfer::restore(host, Some(returned), &record.device)?;
                    link = host.link_by_index(link.index)?;
                    record::files().retire(&owner).remove()?;
                }
                Some(returned) => bail!(
                    "{} is another link than the device of that name, which returned from {owner} as \
                     {}; rename that link",
                    link.name,
                    returned.name
                ),
                None => {}
            }
        }
        device::expect_movable(host, &link)?;
        Ok(link)
    }

    /// Moves `link` into the sandbox, by the name of the interface, and returns it there. Its alias is
    /// its former name: DEL of the reference looks there, as does DEL after ADD was killed.
    fn move_in(
        &self,
        (host, sandbox): (&Connection, &Connection),
        link: &Link,
        undo: &mut Undo<'a>,
    ) -> anyhow::Result<Link> {
        cni::step("record the device");
        let (request, away) = (self.request, self.away);
        let owner = request.attachment.owner();
        let mut record = Record::new(link, &request.netns)?;
        record.selector = self.config.device.to_string();
        record.device.saved_addresses = host.saved_addresses(link.index)?;
        let is_fixed = |it: &SavedAddress| !it.address.is_link_local && !it.address.expires;
        record.device.saved_addresses.retain(is_fixed);
        let master = link.master.map(|it| host.link_by_index(it)).transpose()?;
        record.device.master = master.map(|it| it.name);
        if !record.create(&owner)? {
            let attachment = &request.attachment;
            bail!("an ADD of {attachment} is running or was interrupted; DEL it first");
        }
        let of_undo = owner.clone();
        undo.push("return the device", move || {
            del::return_device(record::files().retire(&of_undo), None)?;
            away.set(false);
            Witness::remove(&of_undo)
        });
        let words = format!("device {}", link.name);
        let witness = Witness::new(self.namespace, sandbox, words)?;
        witness.numbered(host, self.namespace)?.write(&owner)?;
        cni::step("move the device");
        let interface = request.attachment.interface.as_str();
        away.set(true);
        let move_it = Request::move_link(link.index, self.namespace, interface, &link.name);
        let moved = host.execute([move_it]);
        if moved.as_ref().is_err_and(netlink::Error::is_not_found) {
            // A concurrent ADD was faster.
            self.claim(host)?;
        }
        moved?;
        let moved = sandbox.link(interface)?;
        record.has_left = true;
        record.device.index = moved.index;
        record.write(&owner)?;
        Ok(moved)
    }

    fn result(
        &self,
        interface: Interface,
        addressing: Addressing,
        lease: Option<AddResult>,
    ) -> AddResult {
        let lease = lease.unwrap_or_default();
        AddResult {
            ips: placed(addressing.ips, 0).collect(),
            interfaces: vec![Interface {
                sandbox: Some(self.request.netns.to_string_lossy().into_owned()),
                ..interface
            }],
            routes: addressing.routes,
            dns: self.config.dns.clone().unwrap_or(lease.dns),
            extra: lease.extra,
        }
    }
}

/// Brings the device up, with its addresses and routes. Waits for its IPv6 addresses if the device
/// has a carrier.
fn configure(sandbox: &mut Sandbox<'_>, link: &Link, desired: &Container) -> anyhow::Result<Link> {
    if desired.addressing.ips.is_empty() {
        return sandbox.bring_up(link, desired);
    }
    sandbox.configure(link, desired)?;
    let name = &link.name;
    let link = sandbox.find_link()?.with_context(|| {
        format!(
            "{name} disappeared from the sandbox during ADD: another process moved or deleted it; \
             run ADD again"
        )
    })?;
    let has_ipv6 = desired.addressing.ips.iter().any(|it| it.address.is_ipv6());
    if has_ipv6 && link.carrier == Carrier::On {
        cni::step("wait for IPv6");
        return sandbox.wait_until_ready(&link, desired);
    }
    Ok(link)
}
