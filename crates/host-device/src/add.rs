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
use netlink::{Carrier, Connection, Link, Request};
use netns::Netns;

use crate::config::{Config, Selector};
use crate::record::Record;
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
    let add = Add {
        request,
        config: &config,
        namespace: &namespace,
        host: Connection::open()?,
        owner: request.attachment.owner(),
        leased: Leased::default(),
        has_device: Cell::new(false),
        uses_device: uses_link(&request.network)?,
    };
    let mut undo = Undo::default();
    // The rollback runs the newest step first.
    if !add.uses_device {
        undo.push("release the lease", || add.release_lease());
    }
    undo.push("return the device", || add.return_device());
    if add.uses_device {
        undo.push("release the lease", || add.release_lease());
    }
    let result = match config.device {
        Selector::UserSpace => add.without_link(lease),
        _ => add.with_device(lease),
    };
    Ok(answer.give_and_keep(&result?, undo)?)
}

struct Add<'a> {
    request: &'a AddRequest,
    config: &'a Config,
    namespace: &'a Netns,
    host: Connection,
    /// The attachment's tag.
    owner: String,
    /// Whether this ADD has a lease.
    leased: Leased,
    /// Whether this ADD has recorded a device, so the device may have left the host.
    has_device: Cell<bool>,
    /// Whether the IPAM plugin uses the device to release the lease.
    uses_device: bool,
}

impl Add<'_> {
    /// Returns the result for a PCI device that a program such as DPDK uses: there is no link.
    fn without_link(&self, lease: Lease<'_>) -> anyhow::Result<AddResult> {
        let sandbox = Connection::open_in(self.namespace).map_err(Error::sandbox)?;
        self.has_device.set(true);
        self.write_witness(&sandbox, "device of a program".to_owned())?;
        let lease = self.lease(lease)?;
        let addressing = Addressing::of_lease(lease.as_ref(), u32::MAX)?;
        let interface = Interface {
            name: self.request.attachment.interface.to_string(),
            ..Interface::default()
        };
        Ok(self.result(interface, addressing, lease))
    }

    fn with_device(&self, mut lease: Lease<'_>) -> anyhow::Result<AddResult> {
        cni::step("find the device");
        let mut sandbox = Sandbox::open(self.namespace, &self.request.attachment.interface)?;
        if let Some(Link { name, .. }) = sandbox.find_link()? {
            bail!("the sandbox has an interface {name} already; choose another name (CNI_IFNAME)");
        }
        let link = self.claim()?;
        let record = self.record(sandbox.connection(), &link)?;
        if let Lease::BeforeLink(plugin) = &mut lease {
            // The kernel takes some milliseconds for the move.
            plugin.proceed()?;
        }
        let mut moved = self.move_in(sandbox.connection(), &link, record);
        if let Lease::AfterLink(_) = lease {
            moved = Ok(sandbox.bring_up(&moved?, &Container::default())?);
        }
        // The rollback has to know of a lease, also if the move failed.
        let lease = self.lease(lease);
        let (moved, lease) = (moved?, lease?);
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
    fn claim(&self) -> anyhow::Result<Link> {
        let (host, selector) = (&self.host, &self.config.device);
        let look = || anyhow::Ok((transfer::reclaim(host)?, device::find(host, selector)?));
        let (mut records, mut found) = look()?;
        let is_one = |it: &Link| records.iter().any(|record| record.device.is_like(it));
        if found.as_ref().is_some_and(is_one) {
            // It may have returned just now. The new record describes it as it could be restored.
            (records, found) = look()?;
        }
        ensure!(
            records.iter().all(|it| it.owner != self.owner),
            self.holds()
        );
        let link = found.with_context(|| {
            let held = records.iter().find(|it| it.is_named(selector));
            let next = match held {
                Some(Record { owner, netns, .. }) => format!(
                    "{owner} has it in {}: DEL that first, or choose another device",
                    netns.display()
                ),
                None => "`ip link` lists its links".to_owned(),
            };
            format!("the host has no {selector}; {next}")
        })?;
        for record in records.iter().filter(|it| it.device.name == link.name) {
            let returned = record.find_on_host(host)?;
            if let Some(returned) = returned.filter(|it| it.index != link.index) {
                let (name, owner) = (&link.name, &record.owner);
                bail!(
                    "{name} is another link than the device of that name, which returned from {owner} as \
                     {}; rename that link",
                    returned.name
                );
            }
        }
        device::expect_movable(host, &link)?;
        Ok(link)
    }

    fn holds(&self) -> String {
        let attachment = &self.request.attachment;
        format!("{attachment} has a device already, or its ADD was interrupted; DEL it first")
    }

    /// Records `link`, which is about to move into the sandbox.
    fn record(&self, sandbox: &Connection, link: &Link) -> anyhow::Result<Record> {
        cni::step("record the device");
        let record = Record::new(self.request, &self.host, (&self.config.device, link))?;
        ensure!(record.create()?, self.holds());
        self.has_device.set(true);
        self.write_witness(sandbox, format!("device {}", link.name))?;
        Ok(record)
    }

    /// Moves `link` into the sandbox, by the name of the interface, and returns it there. Its alias is
    /// its former name: DEL of the reference looks there, as does DEL after ADD was killed.
    fn move_in(
        &self,
        sandbox: &Connection,
        link: &Link,
        mut record: Record,
    ) -> anyhow::Result<Link> {
        cni::step("move the device");
        let interface = self.request.attachment.interface.as_str();
        // The kernel refuses a name in the sandbox that is an alternative one there, and the converse.
        let is_taken =
            |it: &&String| *it == interface || matches!(sandbox.find_link(it), Ok(Some(_)));
        let taken = link.alternative_names.iter().filter(is_taken);
        let deletions = taken.map(|it| Request::delete_alternative_name(link.index, it));
        let move_it = Request::move_link(link.index, self.namespace, interface, &link.name);
        let requests: Vec<_> = deletions.chain([move_it]).collect();
        let moved = self.host.execute(requests);
        if moved.as_ref().is_err_and(netlink::Error::is_not_found) {
            // A concurrent ADD was faster.
            self.claim()?;
        }
        moved?;
        let moved = sandbox.link(interface)?;
        if moved.index != link.index {
            record.device.index = moved.index;
            record.write()?;
        }
        Ok(moved)
    }

    fn write_witness(&self, sandbox: &Connection, link: String) -> anyhow::Result<()> {
        let witness = Witness::new(self.namespace, sandbox, link)?;
        witness
            .numbered(&self.host, self.namespace)?
            .write(&self.owner)
    }

    /// Brings the device back and removes its records, if this ADD has recorded it.
    fn return_device(&self) -> anyhow::Result<()> {
        if !self.has_device.get() {
            return Ok(());
        }
        del::return_recorded(&self.owner)?;
        self.has_device.set(false);
        Witness::remove(&self.owner)
    }

    /// Releases the lease, if this ADD has one.
    fn release_lease(&self) -> anyhow::Result<()> {
        let request = self.request;
        self.leased.release(&request.network, || {
            let netns = request.netns.display();
            ensure!(
                self.uses_device || !self.has_device.get(),
                "the device is not back from {netns}: the lease stays until DEL"
            );
            Ok(())
        })
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
    sandbox.configure(link, desired)?;
    if !desired.addressing.ips.iter().any(|it| it.address.is_ipv6()) {
        return Ok(link.clone());
    }
    let name = &link.name;
    let link = sandbox.find_link()?.with_context(|| {
        format!(
            "{name} disappeared from the sandbox during ADD: another process moved or deleted it; \
             run ADD again"
        )
    })?;
    if link.carrier == Carrier::Off {
        return Ok(link);
    }
    cni::step("wait for IPv6");
    sandbox.wait_until_ready(&link, desired)
}
