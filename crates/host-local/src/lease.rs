//! Who holds an address: the content of a lease's file, as the reference writes it.

use std::fmt;

use cni::Attachment;

/// The holder of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The container ID.
    pub container: String,
    /// The interface; old versions of the reference did not write it.
    pub interface: Option<String>,
}

impl Holder {
    /// Reads a file's content; white space around the two lines does not count.
    pub fn parse(content: &str) -> Self {
        let mut lines = content.trim().lines().map(str::trim);
        let container = lines.next().unwrap_or_default().to_owned();
        let interface = lines
            .next()
            .filter(|line| !line.is_empty())
            .map(str::to_owned);
        Self {
            container,
            interface,
        }
    }

    /// The lease was made for this attachment.
    pub fn is(&self, attachment: &Attachment) -> bool {
        self.is_container_of(attachment)
            && self.interface.as_deref() == Some(attachment.interface.as_str())
    }

    /// The lease was made by an old version of the reference for this container.
    pub fn is_old_entry_of(&self, attachment: &Attachment) -> bool {
        self.is_container_of(attachment) && self.interface.is_none()
    }

    /// The lease is this attachment's, as far as anybody can tell.
    pub fn may_be(&self, attachment: &Attachment) -> bool {
        self.is(attachment) || self.is_old_entry_of(attachment)
    }

    fn is_container_of(&self, attachment: &Attachment) -> bool {
        self.container == attachment.container.as_str()
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.container.as_str(), &self.interface) {
            ("", _) => f.write_str("nobody"),
            (container, None) => write!(f, "container {container}"),
            (container, Some(interface)) => {
                write!(f, "container {container} interface {interface}")
            }
        }
    }
}

/// The content of the file of a lease for `attachment`.
pub(crate) fn content(attachment: &Attachment) -> String {
    format!("{}\r\n{}", attachment.container, attachment.interface)
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
        assert_eq!(content(&attachment()), "c1\r\neth0");
        for text in ["c1\r\neth0", "c1\neth0\n", " c1 \r\n eth0 \r\n"] {
            assert!(Holder::parse(text).is(&attachment()), "{text:?}");
        }
        for text in ["c1\r\neth1", "c2\r\neth0", "c1", "", "\r\neth0"] {
            assert!(!Holder::parse(text).is(&attachment()), "{text:?}");
        }
    }

    #[test]
    fn holder_is_told_as_far_as_it_is_known() {
        for (text, expected) in [
            ("c1\r\neth0", "container c1 interface eth0"),
            ("c1", "container c1"),
            ("", "nobody"),
        ] {
            assert_eq!(Holder::parse(text).to_string(), expected);
        }
    }

    #[test]
    fn old_entry_names_the_container_alone() {
        assert!(Holder::parse("c1\n").is_old_entry_of(&attachment()));
        assert!(!Holder::parse("c1\r\neth0").is_old_entry_of(&attachment()));
        for (text, expected) in [("c1", true), ("c1\r\neth0", true), ("c1\r\neth1", false)] {
            assert_eq!(
                Holder::parse(text).may_be(&attachment()),
                expected,
                "{text:?}"
            );
        }
    }
}
