//! Rules of the reference plugins, the Go plugins (containernetworking/plugins): the marks that
//! identify the attachment of a chain or rule, which are parts of chain names, parts of rule comments,
//! and addresses; and which of these attachments may be live.
//!
//! `liveness` of upkeep judges each attachment. This module only compares attachments with rules.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context as _, bail, ensure};
use cni::{Attachment, is_hex};
use node::{HostLink, Lease, Node, Part, REFERENCE_MASQUERADE, REFERENCE_PORTMAP};
use runtime::Directories;
use upkeep::{Candidate, Liveness, liveness};

use crate::sandbox::sha512;

/// How the Go plugins identify an attachment in a chain or rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// The first 21 or 24 hexadecimal digits of the SHA-512 of the network's name and the container
    /// ID, without separator (`FormatChainName` of the Go plugins).
    Chain(String),
    Container(String),
    /// The first 16 digits of the SHA-512 of the network, `-`, and the first 16 digits of the
    /// SHA-512 of `INTERFACE:CONTAINER` (`hashForInstance` of the Go plugins).
    Instance(String),
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
    /// address, because only [`LiveAttachments::liveness`] can compare addresses.
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

/// The attachments that may be live: `migrate` and doctor look up here whether rules of the Go
/// plugins are stale.
#[derive(Debug, Default)]
pub struct LiveAttachments {
    /// The attachments that are not proven to be gone.
    attachments: Vec<Known>,
    /// Addresses in live sandboxes, as the kernel lists them.
    held: BTreeSet<IpAddr>,
    /// The addresses in `held` whose attachment is not known: the host's end of the veth pair has
    /// no tag, and no lease of the address names an attachment.
    unnamed: BTreeSet<IpAddr>,
    /// Names of the bridges with a port that this suite did not make.
    bridges: BTreeSet<String>,
    links: BTreeSet<String>,
}

#[derive(Debug)]
struct Known {
    attachment: Attachment,
    addresses: BTreeSet<IpAddr>,
    state: Liveness,
}

impl LiveAttachments {
    /// Reads the attachments that may be live.
    ///
    /// # Errors
    /// - A part of the node other than the firewall cannot be read: the configuration, leases, the
    ///   cache or links.
    /// - A file in the cache, or a lease file that is not empty, does not name its attachment.
    /// - The kernel does not show the addresses in a sandbox, as for [`Self::of`].
    pub fn read(directories: &Directories) -> anyhow::Result<Self> {
        for entry in directories.cache.entries()? {
            entry.context("find live attachments")?;
        }
        let node = Node::attachments(directories);
        for (part, reason) in &node.unread {
            ensure!(*part == Part::Firewall, "find live attachments: {reason}");
        }
        for lease in node.leases.iter().filter(|it| it.holder.is_none()) {
            let is_empty = lease.path.metadata().is_ok_and(|it| it.len() == 0);
            let path = lease.path.display();
            ensure!(is_empty, "find the holder of lease {path}");
        }
        Self::of(&node).context("find live attachments")
    }

    /// Derives the attachments that may be live from a node that was read before.
    ///
    /// # Errors
    /// Any rule may be for a live attachment that cannot be identified:
    /// - A file in the cache does not name its attachment.
    /// - The kernel does not list the addresses in a sandbox, or lists none in a sandbox whose host
    ///   link has no tag.
    pub fn of(node: &Node) -> anyhow::Result<Self> {
        let links = &node.host_links;
        let are_valid = node.invalid_entries == 0;
        ensure!(are_valid, "a file in the cache names no attachment");
        let has_no_address = || links.unexplained(|_| true).next();
        if let Some(link) = links.hidden().or_else(has_no_address) {
            let name = &link.link.name;
            bail!("the kernel shows no address of the sandbox behind {name}");
        }
        let leased = node.leases.iter().filter(|it| it.attachment().is_some());
        let named: BTreeSet<_> = leased.map(|it| it.address).collect();
        let attachments = node.attached.iter().map(|it| it.attachment.clone());
        let held = node.leases.iter().filter_map(Lease::attachment);
        let tags: BTreeSet<_> = attachments.chain(held).map(|it| it.owner()).collect();
        // The names behind hashes are unknown, unless a cached result or a lease has them.
        let hides_names = |tag: &str| Attachment::has_hashes(tag) && !tags.contains(tag);
        let unnamed = links.0.iter();
        let unnamed = unnamed.filter(|it| it.owner.as_deref().is_none_or(hides_names));
        let unnamed = unnamed.flat_map(HostLink::known_addresses);
        let bridges = links.untagged().filter_map(|it| it.link.master);
        Ok(Self {
            attachments: known(node),
            held: links.0.iter().flat_map(HostLink::known_addresses).collect(),
            unnamed: unnamed.filter(|it| !named.contains(it)).collect(),
            bridges: bridges.map(|it| node.link_name(it).to_owned()).collect(),
            links: node.links.iter().map(|it| it.name.clone()).collect(),
        })
    }

    /// Returns the state of the attachment to which a chain or rule with this mark and these
    /// addresses belongs. If several attachments have the mark, returns the state that is closest
    /// to [`Liveness::Live`]. Returns [`Liveness::Gone`] if no attachment that may be live has the
    /// mark, no live sandbox of an unknown attachment has one of the addresses, and the host has no
    /// link that the mark names.
    pub fn liveness(&self, mark: &Mark, addresses: &BTreeSet<IpAddr>) -> Liveness {
        let has_mark = |it: &&Known| match mark {
            Mark::Address(address) => it.addresses.contains(address),
            mark => mark.is_of(&it.attachment),
        };
        let known = self.attachments.iter().filter(has_mark);
        let is_held = match mark {
            Mark::Address(address) => self.held.contains(address),
            Mark::Spoof(_, Some(link)) => self.links.contains(link),
            _ => false,
        };
        if is_held || !self.unnamed.is_disjoint(addresses) {
            return Liveness::Live;
        }
        let states = known.map(|it| it.state.clone());
        states.min().unwrap_or(Liveness::Gone)
    }

    /// Returns whether the bridge has a port that this suite did not make. A Go plugin may have
    /// made the port, so `migrate` keeps the Go plugins' rules for the bridge.
    pub fn is_on(&self, bridge: &str) -> bool {
        self.bridges.contains(bridge)
    }

    /// Returns whether there are live sandboxes whose attachment is not known. If so, a chain or
    /// rule that matches no known attachment may still belong to such a sandbox, so it is not
    /// proven to be stale.
    pub fn has_unnamed(&self) -> bool {
        !self.unnamed.is_empty()
    }
}

/// Returns the attachments of the node that are not proven to be gone.
fn known(node: &Node) -> Vec<Known> {
    let traces = node.traces().into_iter();
    let known = traces.filter_map(|(owner, traces)| {
        let candidate = Candidate::of_traces(&owner, &traces)?;
        Some(Known {
            state: liveness(node, &candidate),
            attachment: candidate.attachment,
            addresses: candidate.addresses,
        })
    });
    known.filter(|it| it.state != Liveness::Gone).collect()
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
