//! The order of the lease and the container's link.

use cni::delegate::{Delegate, Started};
use cni::{Error, Network, Role, Verb, role};

use crate::Gateway;

/// When ADD calls the IPAM plugin.
pub enum Lease<'a> {
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
    /// use the pair. With a bridge, only plugins of this suite whose [`Role`] says so can. The
    /// caller starts any other plugin after it has created the pair.
    ///
    /// # Errors
    /// The IPAM plugin is missing or cannot be started.
    pub fn prepare(network: &'a Network, gateway: Gateway) -> Result<Self, Error> {
        let early = Some(Role::Ipam { needs_link: false });
        let is_early = |name| gateway == Gateway::HostEnd || role(name) == early;
        Ok(match Delegate::ipam(network)? {
            None => Self::None,
            Some(delegate) if is_early(delegate.name()) => {
                Self::BeforeLink(delegate.start(Verb::Add)?)
            }
            Some(delegate) => Self::AfterLink(delegate),
        })
    }
}

/// Returns whether the IPAM plugin of the network, such as `dhcp`, uses the link to release a lease,
/// and then removes the address from the link. Then DEL and the rollback of ADD release the lease
/// before they remove the link. Any other plugin releases it afterwards.
///
/// # Errors
/// `ipam.type` is invalid.
pub fn uses_link(network: &Network) -> Result<bool, Error> {
    let role = network.ipam_type()?.and_then(|name| role(&name));
    Ok(role == Some(Role::Ipam { needs_link: true }))
}
