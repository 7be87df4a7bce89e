//! What an ADD made, and takes back when it fails.

use std::cell::Cell;

use anyhow::ensure;
use cni::{AddRequest, Verb};
use netlink::Connection;

use crate::{del, plan};

/// What this ADD made, which alone it takes back: another ADD of the attachment may be at work.
///
/// The pair decides between them, since the kernel makes one of that name. So `nf_tables` elements
/// come after it.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// A lease, or an IPAM plugin that was killed may have made one.
    pub lease: Cell<bool>,
    /// The pair, or the kernel may have.
    pub pair: Cell<bool>,
}

impl Made {
    /// Releases the lease, but not beside a port that may have its address.
    pub fn release_lease(&self, request: &AddRequest) -> anyhow::Result<()> {
        if !self.lease.get() {
            return Ok(());
        }
        let name = plan::host_link_name(&request.attachment);
        let port = Connection::open()?.find_link(&name)?;
        ensure!(port.is_none(), "{name} is there: kept");
        del::forward(&request.network, Verb::Del)
    }

    /// Deletes the pair.
    pub fn delete_pair(&self, request: &AddRequest) -> anyhow::Result<()> {
        if !self.pair.get() {
            return Ok(());
        }
        // The connection may be what failed.
        let host = Connection::open()?;
        match del::find_host_link(&host, &request.attachment)? {
            Some(link) => del::remove(&host, &link).map(drop),
            None => Ok(()),
        }
    }

    /// Removes the elements.
    pub fn remove_protection(&self, request: &AddRequest) -> anyhow::Result<()> {
        if !self.pair.get() {
            return Ok(());
        }
        del::remove_protection(&request.attachment).map(drop)
    }
}
