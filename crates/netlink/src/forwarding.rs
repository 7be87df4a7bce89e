//! Reads whether the host forwards packets.

use nix::libc::{RTM_GETNETCONF, RTM_NEWNETCONF};

use crate::attributes::{Attributes, value};
use crate::message::Bytes;
use crate::{Connection, Error, IpVersion, Message, Request};

impl Connection {
    /// Returns whether the host forwards packets of this IP version. Equivalent to `ip netconf show
    /// dev all` and `ip -6 netconf show dev all`. This function does not open a file below
    /// `/proc/sys/net`, because that takes long on a host with many namespaces.
    ///
    /// # Errors
    /// [`Error::Refused`]: the kernel does not support the IP version.
    pub fn forwards(&self, version: IpVersion) -> Result<bool, Error> {
        let links = Attributes::new().word(LINK, ALL_LINKS);
        let question = [&[version.number(), 0, 0, 0], &*links].concat();
        let operation = "read whether the host forwards";
        let request = Request::read(operation, RTM_GETNETCONF, &Bytes(question));
        Ok(self.objects(&[request], is_on)?.contains(&true))
    }
}

/// Returns whether the kernel's answer reports that forwarding is on (`NETCONFA_FORWARDING`).
/// Returns `None` if the answer lacks this attribute. netlink-packet-route cannot parse the answer,
/// whose format is in `include/uapi/linux/netconf.h`.
pub(crate) fn is_on(answer: &Message) -> Option<bool> {
    let forwarding = value(answer.body.get(HEADER..)?, FORWARDING)?;
    let is_on = forwarding.iter().any(|byte| *byte != 0);
    Some(is_on && answer.kind == RTM_NEWNETCONF)
}

/// `struct netconfmsg` with the padding before the attributes, in bytes.
const HEADER: usize = 4;

/// The attribute `NETCONFA_IFINDEX`, and its value `NETCONFA_IFINDEX_ALL`, -1.
const LINK: u16 = 1;
const ALL_LINKS: u32 = u32::MAX;

/// `NETCONFA_FORWARDING`.
const FORWARDING: u16 = 2;
