//! Who holds an address: the content of a lease's file, as the reference writes it.

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

    fn is_container_of(&self, attachment: &Attachment) -> bool {
        self.container == attachment.container.as_str()
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
    fn old_entry_names_the_container_alone() {
        assert!(Holder::parse("c1\n").is_old_entry_of(&attachment()));
        assert!(!Holder::parse("c1\r\neth0").is_old_entry_of(&attachment()));
    }
}
