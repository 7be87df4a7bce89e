//! Tap links, which netlink changes but does not make.

use anyhow::ensure;
use cni::{Error, InterfaceName};
use netlink::{Connection, Link, LinkChange, LinkKind};
use tun::{Device, Tap};

use crate::Differences;

/// A tap link to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTap {
    /// Its queues, and who may open it.
    pub tap: Tap,
    /// The `SELinux` context of the link; `None` for that of the plugin.
    pub context: Option<String>,
    /// The bridge in the sandbox of which it is a port.
    pub bridge: Option<InterfaceName>,
}

impl NewTap {
    /// Checks that the host has the device file, and accepts the context.
    pub(super) fn expect_possible(&self) -> anyhow::Result<()> {
        let context = self.context.as_deref();
        context.map_or(Ok(()), tun::expect_context)?;
        tun::expect_device()
    }

    /// Returns the change that makes the link a port of its bridge, if it has one.
    pub(super) fn find_master(
        &self,
        sandbox: &Connection,
    ) -> anyhow::Result<Option<LinkChange<'static>>> {
        let Some(bridge) = &self.bridge else {
            return Ok(None);
        };
        let missing = || {
            let reason = format!("there is no link {bridge} in the sandbox");
            Error::invalid("bridge", reason)
        };
        let found = sandbox.find_link(bridge.as_str())?.ok_or_else(missing)?;
        Ok(Some(LinkChange::Master(found.index)))
    }

    /// Makes the link, down, in the network namespace of the calling thread.
    pub(super) fn create(&self, name: &str) -> anyhow::Result<Device> {
        self.tap.create(name, self.context.as_deref())
    }

    /// Lets only the owner and the group open the new link, makes `changes`, and keeps the link.
    ///
    /// # Errors
    /// - The kernel refuses a request.
    /// - Another program has opened a queue before. It would keep the queue.
    pub(super) fn complete(
        &self,
        device: &Device,
        sandbox: &Connection,
        (name, changes): (&str, &[LinkChange<'_>]),
    ) -> anyhow::Result<Link> {
        device.restrict(&self.tap)?;
        let link = sandbox.change_link(name, changes)?;
        let is_restricted = self.tap.owner.or(self.tap.group).is_some();
        // Who has opened a queue can also have changed the owner.
        let is_desired = matches!(&link.kind, LinkKind::Tap(tap) if **tap == self.tap);
        ensure!(
            is_desired && link.open_queues <= 1 || !is_restricted,
            "a program in the sandbox has opened {name} before ADD could restrict that to its \
             owner and group; end this program, and repeat ADD"
        );
        device.keep()?;
        Ok(link)
    }

    /// Reports queues, owner, group and bridge that differ.
    pub(super) fn compare(
        &self,
        link: &Link,
        sandbox: &Connection,
        found: &mut Differences,
    ) -> anyhow::Result<()> {
        let (name, desired) = (&link.name, &self.tap);
        if let LinkKind::Tap(tap) = &link.kind {
            found.unless(**tap == *desired, || {
                format!("{name} is a {tap}, not a {desired}")
            });
        }
        if let Some(bridge) = &self.bridge {
            let master = sandbox.find_link(bridge.as_str())?.map(|it| it.index);
            let is_port = master.is_some() && link.master == master;
            found.unless(is_port, || format!("{name} is no port of {bridge}"));
        }
        Ok(())
    }
}
