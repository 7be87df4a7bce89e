//! Sysctls that protect the host and containers against router advertisements, on a host with a
//! read-only `/proc/sys`, such as a nested container.

use anyhow::bail;
use cni::note;
use ipnetwork::IpNetwork;

use crate::Addressing;

/// Returns a message if a sysctl that protects against router advertisements could not be set,
/// because `/proc/sys` is read-only. `set` is the outcome, and `consequence` the beginning of the
/// message. A kernel without the sysctl needs no protection.
///
/// # Errors
/// The sysctl could not be set for another reason.
pub fn harden(set: Result<(), netns::Error>, consequence: &str) -> anyhow::Result<Option<String>> {
    match set {
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) if error.is_read_only() => {
            let error = anyhow::Error::from(error).context(consequence.to_owned());
            Ok(Some(format!("{error:#}")))
        }
        set => Ok(set.map(|()| None)?),
    }
}

/// Writes `unset`, messages of [`harden`], to standard error.
///
/// # Errors
/// The first message, if the host is an IPv6 gateway of the attachment: such a host needs a
/// writable `/proc/sys` anyway.
pub(crate) fn report_read_only(unset: &[String], addressing: &Addressing) -> anyhow::Result<()> {
    let is_ipv6_gateway = addressing.gateways.iter().any(IpNetwork::is_ipv6);
    for message in unset {
        if is_ipv6_gateway {
            bail!("{message}");
        }
        note(message);
    }
    Ok(())
}

/// Consequence for [`harden`]: a link of the host accepts router advertisements.
pub const HOST_EXPOSED: &str =
    "a container can change the host's IPv6 routes by router advertisements";

/// Consequence for [`harden`]: the container's link accepts router advertisements.
pub(crate) const CONTAINER_EXPOSED: &str =
    "other containers can change this container's IPv6 routes by router advertisements";
