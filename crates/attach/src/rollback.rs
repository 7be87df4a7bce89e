//! Notes which objects an ADD created, so that the rollback of this ADD removes only these.

use std::cell::Cell;

use anyhow::ensure;
use cni::{AddRequest, Verb};
use netlink::Connection;

use crate::{del, names};

/// Which objects an ADD created. The rollback removes only these, because a concurrent ADD of the
/// same attachment may have created the others.
///
/// The kernel creates only one veth pair with a name, so only one of several concurrent ADDs
/// succeeds. This ADD then adds the `nf_tables` elements. So the ADD that created the pair also
/// created the elements, and needs no separate note for them.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// Whether this ADD has a lease, or may have one because the IPAM plugin was killed.
    pub lease: Cell<bool>,
    /// Whether this ADD has created the veth pair, or may have: the kernel can create it and still
    /// report an error.
    pub pair: Cell<bool>,
}

impl Made {
    /// Releases the lease, if this ADD has one. Returns an error if the host's end of the pair
    /// still exists, because the sandbox may then still use the address.
    pub fn release_lease(&self, request: &AddRequest) -> anyhow::Result<()> {
        if !self.lease.get() {
            return Ok(());
        }
        let name = names::host_link_name(&request.attachment);
        let port = Connection::open()?.find_link(&name)?;
        ensure!(port.is_none(), "{name} is there: kept");
        del::forward(&request.network, Verb::Del)
    }

    /// Deletes the veth pair, if this ADD created it.
    pub fn delete_pair(&self, request: &AddRequest) -> anyhow::Result<()> {
        if !self.pair.get() {
            return Ok(());
        }
        // Opens a new connection, because the one of ADD may have failed.
        let host = Connection::open()?;
        if let Some(link) = del::find_host_link(&host, &request.attachment)? {
            host.remove_link(&link)?;
        }
        Ok(())
    }

    /// Removes the `nf_tables` elements, if this ADD created the veth pair.
    pub fn remove_protection(&self, request: &AddRequest) -> anyhow::Result<()> {
        if !self.pair.get() {
            return Ok(());
        }
        del::remove_protection(&request.attachment)
    }
}
