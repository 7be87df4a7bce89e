//! Tap links, which netlink changes but does not make.

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
    pub(super) fn expect_possible(&self) -> Result<(), tun::Error> {
        self.context
            .as_deref()
            .map_or(Ok(()), tun::expect_context)?;
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
    pub(super) fn create(&self, name: &str) -> Result<Device, tun::Error> {
        self.tap.create(name, self.context.as_deref())
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
