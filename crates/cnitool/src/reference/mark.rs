//! The marks that identify the attachment of a chain or rule of the Go plugins: parts of chain
//! names, parts of rule comments, and addresses.

use std::net::IpAddr;

use cni::{Attachment, is_hex};
use node::{REFERENCE_MASQUERADE, REFERENCE_PORTMAP};

use crate::sandbox::sha512;

/// How the Go plugins identify an attachment in a chain or rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// The first 21 or 24 hexadecimal digits of the SHA-512 of the network's name and the container
    /// ID, without separator (`FormatChainName` of the Go plugins).
    Chain(String),
    /// The container ID.
    Container(String),
    /// The first 16 digits of the SHA-512 of the network, `-`, and the first 16 digits of the
    /// SHA-512 of `INTERFACE:CONTAINER` (`hashForInstance` of the Go plugins).
    Instance(String),
    /// An address of the container.
    Address(IpAddr),
    /// `CONTAINER-INTERFACE`, and the host's link that the rule names (`macspoofchk` of `bridge`).
    Spoof(String, Option<String>),
}

impl Mark {
    /// Returns the part of this iptables chain's name that identifies an attachment. Returns `None`
    /// if the name does not have the form that the Go plugins use for the chain of an attachment.
    pub fn of_chain(chain: &str) -> Option<Self> {
        let name = chain.strip_prefix("CNI-")?;
        let (digits, length) = match name.strip_prefix("DN-") {
            Some(digits) => (digits, 21),
            None => (name, 24),
        };
        is_hex(digits, length).then(|| Self::Chain(digits.to_owned()))
    }

    /// Returns whether this mark identifies the attachment. Returns `false` if the mark is an
    /// address, because only [`super::LiveAttachments::liveness`] can compare addresses.
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
            Self::Spoof(id, _) => *id == format!("{container}-{}", attachment.interface),
            // `attachment` contains no addresses to compare.
            Self::Address(_) => false,
        }
    }

    /// Returns the part of a rule's `comment` that identifies an attachment. Returns `None` if the
    /// rule's `table` is not the table for port mappings or for masquerading of the Go plugins.
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

    /// The expected digits are the first that `printf podsa | sha512sum` prints. Debian's version
    /// of the Go plugins uses these digits in the names of chains.
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
