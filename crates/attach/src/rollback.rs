//! Objects that an ADD made, for its rollback.

use std::cell::Cell;

use anyhow::ensure;
use cni::{AddRequest, Verb};
use netlink::Connection;

use crate::{del, names};

/// Objects that this ADD made. The rollback removes only these, because a concurrent ADD of the
/// attachment may exist.
///
/// The kernel creates only one pair of the name, which decides between concurrent ADDs. So
/// `nf_tables` elements come after it.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// This ADD has a lease, or a killed IPAM plugin may have made one.
    pub lease: Cell<bool>,
    /// This ADD has created the pair, or the kernel may have.
    pub pair: Cell<bool>,
}

impl Made {
    /// Releases the lease unless a port may have its address.
    pub fn release_lease(&self, request: &AddRequest) -> anyhow::Result<()> {
        if !self.lease.get() {
            return Ok(());
        }
        let name = names::host_link_name(&request.attachment);
        let port = Connection::open()?.find_link(&name)?;
        ensure!(port.is_none(), "{name} is there: kept");
        del::forward(&request.network, Verb::Del)
    }

    /// Deletes the pair.
    pub fn delete_pair(&self, request: &AddRequest) -> anyhow::Result<()> {
        if !self.pair.get() {
            return Ok(());
        }
        // The connection itself may have failed.
        let host = Connection::open()?;
        if let Some(link) = del::find_host_link(&host, &request.attachment)? {
            host.remove_link(&link)?;
        }
        Ok(())
    }

    /// Removes the elements.
    pub fn remove_protection(&self, request: &AddRequest) -> anyhow::Result<()> {
        if !self.pair.get() {
            return Ok(());
        }
        del::remove_protection(&request.attachment)
    }
}
