//! The rollback of an ADD, which removes only objects that this ADD created.

use std::cell::Cell;

use anyhow::bail;
use cni::delegate::Started;
use cni::{AddRequest, AddResult, Error, Network, Verb};
use netlink::{Connection, LinkChange, found};

use crate::del;
use crate::lease::{Lease, uses_link};

/// Whether an ADD has a lease, or may have one: the IPAM plugin may have leased addresses before it
/// failed. The rollback releases no other lease, because it belongs to a concurrent ADD of the
/// attachment.
#[derive(Debug, Default)]
pub struct Leased(Cell<bool>);

impl Leased {
    /// Notes that the rollback releases the lease whatever the IPAM plugin answers: no concurrent ADD
    /// has one.
    pub(crate) fn expect(&self) {
        self.0.set(true);
    }

    /// Waits for the lease.
    ///
    /// # Errors
    /// The error of the IPAM plugin. If a plugin of this suite printed it, it leased nothing to this
    /// ADD. Any other may have leased one of two addresses.
    pub fn wait_for(&self, plugin: Started<'_>) -> Result<AddResult, Error> {
        let is_ours = plugin.role().is_some();
        let lease = plugin.result();
        self.0
            .set(!is_ours || !lease.as_ref().is_err_and(Error::is_answer));
        lease
    }

    /// Obtains the lease; `None` if the network has no IPAM plugin.
    ///
    /// # Errors
    /// As [`Self::wait_for`], or the IPAM plugin cannot be started.
    pub fn obtain(&self, lease: Lease<'_>) -> Result<Option<AddResult>, Error> {
        let plugin = match lease {
            Lease::None => return Ok(None),
            Lease::BeforeLink(plugin) => plugin,
            Lease::AfterLink(delegate) => delegate.start(Verb::Add)?,
        };
        self.wait_for(plugin).map(Some)
    }

    /// Releases the lease, if there is one.
    ///
    /// # Errors
    /// The error of `expect_unused`, after which the lease stays, or of the IPAM plugin.
    pub fn release(
        &self,
        network: &Network,
        expect_unused: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if !self.0.get() {
            return Ok(());
        }
        expect_unused()?;
        del::forward(network, Verb::Del)
    }
}

/// Which objects of an attachment this ADD created. The rollback removes only these, because a
/// concurrent ADD of the same attachment may have created the other objects.
///
/// Of several concurrent ADDs, only one can create the veth pair, because the name of the pair is
/// taken afterwards. Only this ADD goes on to add `nf_tables` elements. So `pair` also stands for
/// the elements.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// Whether this ADD has a lease.
    pub lease: Leased,
    /// Whether this ADD has created the veth pair, or may have created it: the kernel can create a
    /// pair and still report an error.
    pub pair: Cell<bool>,
}

impl Made {
    /// Releases the lease, if this ADD has one.
    ///
    /// # Errors
    /// The host's end of the veth pair still exists, although the IPAM plugin needs no link. The lease
    /// then stays, because the sandbox may still use the address.
    pub fn release_lease(&self, request: &AddRequest) -> anyhow::Result<()> {
        self.lease.release(&request.network, || {
            let uses_link = uses_link(&request.network)?;
            let port = del::find_host_link(&Connection::open()?, &request.attachment)?;
            if let Some(port) = port.filter(|_| !uses_link) {
                bail!(
                    "the host link {} still exists, so the lease stays",
                    port.name
                );
            }
            Ok(())
        })
    }

    /// Deletes the veth pair, if this ADD created it.
    pub fn delete_pair(&self, request: &AddRequest) -> anyhow::Result<()> {
        if !self.pair.get() {
            return Ok(());
        }
        // The rollback opens a new connection, because the connection of ADD may have failed.
        let host = Connection::open()?;
        if let Some(link) = del::find_host_link(&host, &request.attachment)? {
            host.remove_link(&link)?;
        }
        Ok(())
    }

    /// Takes the host's end of the veth pair down and removes the `nf_tables` elements, if this ADD
    /// created the pair. If it did not, the elements belong to a concurrent ADD.
    ///
    /// The rollback deletes the pair only after the elements, unlike DEL: as long as the pair
    /// exists, no concurrent ADD can add the same elements. The sandbox cannot send without the
    /// elements, because the host's end is down.
    ///
    /// # Errors
    /// The host's end cannot be taken down. The elements then stay, because the sandbox may still
    /// send.
    pub fn remove_protection(&self, request: &AddRequest) -> anyhow::Result<()> {
        if !self.pair.get() {
            return Ok(());
        }
        let host = Connection::open()?;
        if let Some(link) = del::find_host_link(&host, &request.attachment)? {
            found(host.change_link(&link.name, &[LinkChange::Down]))?;
        }
        del::remove_protection(&request.attachment)
    }
}
