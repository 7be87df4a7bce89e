//! The order of the lease and the container's link.

use cni::delegate::{Delegate, Started};
use cni::{Error, Network, Verb};

use crate::Gateway;

/// When ADD calls the IPAM plugin.
pub(crate) enum Lease<'a> {
    /// Never: the network has no IPAM plugin.
    None,
    /// Before the container's link exists. The IPAM plugin is already started.
    BeforeLink(Started<'a>),
    /// After the container's link exists, because the IPAM plugin may use the link.
    AfterLink(Delegate<'a>),
}

impl<'a> Lease<'a> {
    /// Starts the IPAM plugin if it can run before the veth pair exists. Without a bridge, every
    /// IPAM plugin can: the host's end gets its addresses only after the lease, so no plugin could
    /// use the pair. With a bridge, only the plugins in [`SANDBOX_BLIND`] can. The caller starts
    /// any other plugin after it has created the pair.
    pub fn prepare(network: &'a Network, gateway: Gateway) -> Result<Self, Error> {
        let is_early = |name| gateway == Gateway::HostEnd || SANDBOX_BLIND.contains(&name);
        Ok(match Delegate::ipam(network)? {
            None => Self::None,
            Some(delegate) if is_early(delegate.name()) => {
                Self::BeforeLink(delegate.start(Verb::Add)?)
            }
            Some(delegate) => Self::AfterLink(delegate),
        })
    }
}

/// IPAM plugins that do not use the container's link, so they can run before the link exists.
const SANDBOX_BLIND: &[&str] = &["host-local", "static"];
