//! The marks with which the reference recognises its chains and rules: parts of their names and
//! comments.

use std::net::IpAddr;

use cni::Attachment;
use node::{REFERENCE_MASQUERADE, REFERENCE_PORTMAP};

use crate::sandbox::sha512;

/// A mark: how the reference identifies an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// The first digits of the SHA-512 of network and container ID (`FormatChainName`).
    Chain(String),
    /// The container ID.
    Container(String),
    /// The first digits of the hashes of the network, `-`, and of interface, `:` and container ID
    /// (`hashForInstance`).
    Instance(String),
    /// An address of the container.
    Address(IpAddr),
}

impl Mark {
    /// Returns the mark in the name of this iptables chain; `None` if the reference did not create
    /// the chain.
    pub fn of_chain(chain: &str) -> Option<Self> {
        let name = chain.strip_prefix("CNI-")?;
        let (digits, length) = match name.strip_prefix("DN-") {
            Some(digits) => (digits, 21),
            None => (name, 24),
        };
        let is_digit = |it: u8| matches!(it, b'0'..=b'9' | b'a'..=b'f');
        let is_mark = digits.len() == length && digits.bytes().all(is_digit);
        is_mark.then(|| Self::Chain(digits.to_owned()))
    }

    /// Returns whether this is the mark of the attachment's chains or rules. Returns `false` for an
    /// address, which only [`super::Living::has`] can compare.
    pub fn is_of(&self, attachment: &Attachment) -> bool {
        let (network, container) = (&attachment.network, &attachment.container);
        let digest = |text: String| sha512(text.as_bytes());
        match self {
            Self::Chain(digits) => digest(format!("{network}{container}")).starts_with(digits),
            Self::Container(id) => id == container.as_str(),
            Self::Instance(digits) => {
                let network = digest(network.to_string());
                let instance = digest(format!("{}:{container}", attachment.interface));
                *digits == format!("{network:.16}-{instance:.16}")
            }
            // `attachment` contains no addresses to compare.
            Self::Address(_) => false,
        }
    }

    /// Returns the mark in the comment of a rule in this table; `None` if the table is not the
    /// reference's.
    pub fn of_rule(table: &str, comment: &str) -> Option<Self> {
        match table {
            REFERENCE_PORTMAP => Some(Self::Container(comment.to_owned())),
            REFERENCE_MASQUERADE => {
                // `<digits>-<digits>, net: …`
                let digits = comment.split(',').next().unwrap_or_default();
                Some(Self::Instance(digits.to_owned()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf podsa | sha512sum`, from which Debian's reference derived the expected names.
    #[test]
    fn marks_are_those_of_the_reference() {
        let attachment = Attachment::of_owner("cni:pods/a/eth0").unwrap();
        for (mark, is_of) in [
            (Mark::Chain("64e2b30124778559e7bbb4eb".into()), true),
            (Mark::Chain("64e2b30124778559e7bbb".into()), true),
            (Mark::Chain("64e2b30124778559e7bbb4ec".into()), false),
            (Mark::Container("a".into()), true),
            (Mark::Container("b".into()), false),
        ] {
            assert_eq!(mark.is_of(&attachment), is_of, "{mark:?}");
        }
    }
}
