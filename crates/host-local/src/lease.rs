//! The holder of an address: the container and interface that the lease's file names, in the format
//! of the Go plugin `host-local`.

use std::fmt;
use std::net::IpAddr;

use cni::{Attachment, ContainerId, InterfaceName, NetworkName};

/// An address and its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub address: IpAddr,
    /// The holder of the address.
    pub holder: Holder,
}

/// The container and interface to which an address is leased.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// The container ID.
    pub container: ContainerId,
    /// The interface. `None` in files of old versions of the Go plugin, which wrote only the
    /// container ID.
    pub interface: Option<InterfaceName>,
}

impl Holder {
    /// Parses the content of a lease's file: the container ID and the interface, on one line each.
    /// Ignores white space around them.
    ///
    /// Returns `None` for an empty or garbled file. No DEL can match such a lease.
    pub fn parse(content: &[u8]) -> Option<Self> {
        let text = str::from_utf8(content).ok()?;
        let mut lines = text.lines().map(str::trim);
        let container = lines.next()?;
        Self::of_names(container, lines.next().filter(|line| !line.is_empty()))
    }

    /// Returns the holder with these names; `None` if one of them is invalid.
    pub fn of_names(container: &str, interface: Option<&str>) -> Option<Self> {
        Some(Self {
            container: container.parse().ok()?,
            interface: interface.map(str::parse).transpose().ok()?,
        })
    }

    /// Returns the holder of this attachment's leases.
    pub fn of(attachment: &Attachment) -> Self {
        Self {
            container: attachment.container.clone(),
            interface: Some(attachment.interface.clone()),
        }
    }

    /// Returns the attachment of this holder to `network`; `None` if the holder has no interface.
    pub fn on(&self, network: &NetworkName) -> Option<Attachment> {
        Some(Attachment {
            network: network.clone(),
            container: self.container.clone(),
            interface: self.interface.clone()?,
        })
    }

    /// Returns the holder that an old version of the Go plugin wrote for this attachment: the
    /// container without an interface.
    pub fn old_entry_of(attachment: &Attachment) -> Self {
        Self {
            interface: None,
            ..Self::of(attachment)
        }
    }

    /// Returns the content of this holder's lease files, which [`Self::parse`] reads.
    pub fn content(&self) -> String {
        self.joined("\r\n")
    }

    /// Joins the container ID and the interface, if there is one, with `separator`. The content of
    /// lease files and the names of records in the index have this form.
    pub fn joined(&self, separator: &str) -> String {
        match &self.interface {
            Some(interface) => format!("{}{separator}{interface}", self.container),
            None => self.container.to_string(),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "container {}", self.container)?;
        match &self.interface {
            Some(interface) => write!(f, " interface {interface}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment() -> Attachment {
        Attachment {
            network: "pods".parse().unwrap(),
            container: "c1".parse().unwrap(),
            interface: "eth0".parse().unwrap(),
        }
    }

    #[test]
    fn content_is_read_back() {
        let holder = Holder::of(&attachment());
        assert_eq!(holder.content(), "c1\r\neth0");
        for text in ["c1\r\neth0", "c1\neth0\n", " c1 \r\n eth0 \r\n"] {
            assert_eq!(Holder::parse(text.as_bytes()), Some(holder.clone()));
        }
        for text in ["c1\r\neth1", "c2\r\neth0", "c1"] {
            assert_ne!(Holder::parse(text.as_bytes()), Some(holder.clone()));
        }
    }

    #[test]
    fn old_entry_names_only_the_container() {
        let old = Holder::old_entry_of(&attachment());
        assert_eq!(Holder::parse(b"c1\n"), Some(old.clone()));
        assert_eq!(old.content(), "c1");
    }

    #[test]
    fn content_that_no_del_could_name_has_no_holder() {
        for content in [
            &b""[..],
            b"\r\neth0",
            b"\0\0\0",
            b"c1\r\nin/valid",
            b"\xff\xfe",
        ] {
            assert_eq!(Holder::parse(content), None, "{content:?}");
        }
    }

    #[test]
    fn holder_is_displayed_with_its_interface_if_there_is_one() {
        for (text, expected) in [
            ("c1\r\neth0", "container c1 interface eth0"),
            ("c1", "container c1"),
        ] {
            let holder = Holder::parse(text.as_bytes()).unwrap();
            assert_eq!(holder.to_string(), expected);
        }
    }
}
