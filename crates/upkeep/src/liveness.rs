//! Judges whether an attachment is live or gone, for garbage collection and for the commands
//! `doctor` and `migrate` of cnitool.
//!
//! An attachment is gone only if two conditions are met:
//!
//! - No runtime's cache has an entry for it, or the sandbox of this entry does not exist.
//! - Its record proves that its sandbox is gone ([`Witnessed`]). Without a record: no link of the host
//!   is the host's end of its veth pair. This is a proof only if this process can see the host's
//!   links.
//!
//! Every other attachment is live, or not proven to be gone.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use attach::HostEnd;
use cni::{Attachment, NetworkName};
use facts::HostSide;
use netlink::LinkKind;
use node::{
    Attached, HostLink, HostLinks, Lease, Node, Traces, Witnessed, bridge_of, lease_directories,
};
use runtime::Conflist;

/// An attachment that has traces on the node, a candidate for garbage collection: it may be live or
/// gone.
#[derive(Debug)]
pub struct Candidate<'n> {
    /// The attachment.
    pub attachment: Attachment,
    /// What a runtime cached at ADD; `None` if no cache has the attachment.
    pub cached: Option<&'n Attached>,
    /// The leases.
    pub leases: Vec<&'n Lease>,
    /// Its link, if that lives in the sandbox alone.
    pub witness: Option<&'n Witnessed>,
    /// Addresses in the leases, the cached result and the elements of `nf_tables`.
    pub addresses: BTreeSet<IpAddr>,
}

/// State of an attachment, ordered from the proof that it is live to the proof that it is gone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Liveness {
    /// The sandbox exists, or a link of the host is the host's end of its veth pair.
    Live,
    /// The attachment's ADD may still be running, because one of its leases is young.
    Young,
    /// Nothing shows that the attachment is live, but its link may exist where this process cannot
    /// see it.
    Unproven(UnprovenReason),
    /// The attachment has neither a sandbox nor a link.
    Gone,
}

/// Why a missing link does not prove that an attachment is gone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
pub enum UnprovenReason {
    /// Live attachments of the network may have no link that this process can see. Contains the
    /// reason.
    Network(String),
    /// A veth link of the host has no tag, and the sandbox at its other end has no address that an
    /// attachment is known to have. So this may be the sandbox of the attachment. Contains the link's name.
    #[display(
        "the kernel shows no known address of the sandbox behind {_0}, which may be any of them"
    )]
    Behind(String),
}

impl<'n> Candidate<'n> {
    /// Returns the candidate for the attachment that holds the lease; `None` if the lease names no
    /// valid holder or network. Of all leases and addresses, it contains only `lease` and
    /// its address.
    pub fn of_lease(node: &'n Node, lease: &'n Lease) -> Option<Self> {
        let attachment = lease.attachment()?;
        Some(Self {
            cached: node.attached.iter().find(|it| it.attachment == attachment),
            leases: vec![lease],
            witness: node.witnesses.get(&attachment.owner()),
            addresses: BTreeSet::from([lease.address]),
            attachment,
        })
    }

    /// Returns the candidates for all attachments of `network`, sorted by name. Leases count only
    /// if they are in a directory that the network's plugins use.
    pub fn of_network(node: &'n Node, network: &Conflist) -> Vec<Self> {
        let directories = lease_directories(network);
        let is_in = |it: &&Lease| directories.iter().any(|directory| it.is_in(directory));
        let candidates = node.traces().into_iter().filter_map(|(owner, mut traces)| {
            traces.leases.retain(is_in);
            Self::of_traces(&owner, &traces)
        });
        candidates
            .filter(|it| it.attachment.network == network.name)
            .collect()
    }

    /// Returns the candidate for the attachment that has `traces`, which [`Node::traces`] returned
    /// for the key `owner`. Returns `None` if the traces name no attachment.
    pub fn of_traces(owner: &str, traces: &Traces<'n>) -> Option<Self> {
        let (cached, leases) = (traces.cached, traces.leases.clone());
        let holder = leases.first().and_then(|it| it.attachment());
        let named = cached.map(|it| it.attachment.clone()).or(holder);
        let is_tag =
            !traces.links.is_empty() || !traces.elements.is_empty() || traces.witness.is_some();
        let tagged = || Attachment::of_owner(owner).filter(|_| is_tag);
        let reported = cached.into_iter().flat_map(Attached::addresses);
        let held = traces.elements.iter().filter_map(|it| it.address);
        let held = held.chain(leases.iter().map(|it| it.address));
        Some(Self {
            attachment: named.or_else(tagged)?,
            cached,
            witness: traces.witness,
            addresses: reported.map(|it| it.ip()).chain(held).collect(),
            leases,
        })
    }

    /// Returns the host ends of veth pairs whose other ends are in the container. Such a host end
    /// has the tag of an attachment of the same container to the same network. Or it has no tag,
    /// and its sandbox has an address of the attachment, or DEL would take the link for its own.
    pub fn links_in<'l>(&self, links: &'l HostLinks) -> impl Iterator<Item = &'l HostLink> {
        let own = HostEnd::of(&self.attachment);
        links.0.iter().filter(move |link| match &link.owner {
            Some(owner) => self.attachment.is_beside_owner(owner),
            None => self.has_address_of(link) || own.is(&link.link),
        })
    }

    /// Returns whether the sandbox behind `link` has an address of the attachment.
    fn has_address_of(&self, link: &HostLink) -> bool {
        let mut addresses = link.known_addresses();
        addresses.any(|it| self.addresses.contains(&it))
    }

    /// Returns whether `link` may be the host's end of the attachment's veth pair. Returns `false`
    /// only if the cached result names host ends, but not `link`.
    fn may_have(&self, node: &Node, link: &HostLink) -> bool {
        let named = self.cached.map(|it| it.entry.host_links());
        let named = named.unwrap_or_default();
        let is_end = |name: &&String| {
            let link = node.link_called(name);
            link.is_none_or(|it| it.kind == LinkKind::Veth)
        };
        let mut ends = named.iter().filter(is_end).peekable();
        ends.peek().is_none() || ends.any(|it| *it == link.link.name)
    }

    /// Returns whether a lease or the cached result changed within `time`, or has an unknown date.
    pub fn changed_within(&self, time: Duration) -> bool {
        let leases = self.leases.iter().map(|it| it.since);
        let dates = leases.chain(self.cached.map(|it| it.since));
        let mut recent = dates.map(|it| it.is_none_or(|since| is_within(time, since)));
        recent.any(|it| it)
    }

    /// Returns whether an ADD of the attachment may still be running. This is so if a lease has no
    /// date, or if it is younger than [`LONGEST_ADD`] and no newer result is cached. A runtime
    /// caches the result at the end of ADD.
    pub(crate) fn is_young(&self) -> bool {
        let cached = self.cached.and_then(|it| it.since);
        let is_young = |since: SystemTime| {
            is_within(LONGEST_ADD, since) && cached.is_none_or(|cached| cached < since)
        };
        let mut leases = self.leases.iter();
        leases.any(|it| it.since.is_none_or(is_young))
    }
}

/// Returns whether `since` is less than `time` in the past or in the future. A date in the future
/// means that the clock was set back since that date.
fn is_within(time: Duration, since: SystemTime) -> bool {
    since.elapsed().unwrap_or_else(|it| it.duration()) < time
}

/// Judges from the state of the node whether the attachment of `candidate` is live or gone.
pub fn liveness(node: &Node, candidate: &Candidate<'_>) -> Liveness {
    let is_beside = |it: &Attached| it.attachment.is_beside(&candidate.attachment);
    let has_sandbox = node.alive().any(is_beside);
    if has_sandbox || candidate.links_in(&node.host_links).next().is_some() {
        return Liveness::Live;
    }
    if candidate.is_young() {
        return Liveness::Young;
    }
    match candidate.witness {
        Some(Witnessed::Present) => return Liveness::Live,
        Some(Witnessed::Unknown(reason)) => {
            return Liveness::Unproven(UnprovenReason::Network(reason.clone()));
        }
        Some(Witnessed::Gone) => return Liveness::Gone,
        None => {}
    }
    let bridges = match sees(node, candidate) {
        Ok(bridges) => bridges,
        Err(reason) => return Liveness::Unproven(UnprovenReason::Network(reason)),
    };
    let known = known_addresses(node);
    let mut unexplained = node.host_links.unexplained(|it| known.contains(&it));
    let behind = unexplained.find(|it| is_port(it, &bridges) && candidate.may_have(node, it));
    behind.map_or(Liveness::Gone, |it| {
        Liveness::Unproven(UnprovenReason::Behind(it.link.name.clone()))
    })
}

/// Returns the addresses of all attachments that left traces on the node. A process in a sandbox may have
/// replaced such an address by another one.
fn known_addresses(node: &Node) -> BTreeSet<IpAddr> {
    let reported = node.attached.iter().flat_map(Attached::addresses);
    let held = node.firewall.elements.iter().filter_map(|it| it.address);
    let leased = node.leases.iter().map(|it| it.address);
    reported
        .map(|it| it.ip())
        .chain(held)
        .chain(leased)
        .collect()
}

/// Returns whether the link can belong to a network with these bridges: it is a port of one of
/// them. If `bridges` is empty, the link must be a port of no bridge.
fn is_port(link: &HostLink, bridges: &[u32]) -> bool {
    match link.link.master {
        Some(master) => bridges.contains(&master),
        None => bridges.is_empty(),
    }
}

/// Checks that every live sandbox of the network of `candidate` would have a visible link on this
/// host. Only then does a missing link prove that a sandbox is gone. Returns the indexes of the
/// network's bridges.
///
/// # Errors
/// A live sandbox may have no visible link. The error is the reason, for the operator.
fn sees(node: &Node, candidate: &Candidate<'_>) -> Result<Vec<u32>, String> {
    let network = &candidate.attachment.network;
    let networks = networks(node, network);
    if networks.is_empty() {
        return Err(format!("no network {network} is configured"));
    }
    let interfaces = networks.iter().filter_map(|it| it.plugins.first());
    let mut programs = interfaces.map(|it| match it.delegate() {
        Some(delegate) => delegate.program,
        None => it.program.clone(),
    });
    let is_unseen = |it: &String| {
        let side = &node::facts(it).host_side;
        matches!(side, HostSide::Witness | HostSide::None)
    };
    if let Some(other) = programs.find(is_unseen) {
        return Err(format!(
            "plugin {other} makes no link on the host that shows whether a sandbox exists, and there is \
             no record of the sandbox"
        ));
    }
    let plugins: Vec<_> = networks.iter().flat_map(Conflist::all_plugins).collect();
    let names: BTreeSet<_> = plugins.iter().filter_map(bridge_of).collect();
    let bridges = names.iter().filter_map(|it| node.link_called(it));
    let bridges = bridges.filter(|it| it.kind == LinkKind::Bridge);
    let bridges: Vec<_> = bridges.map(|it| it.index).collect();
    if bridges.is_empty() && !is_attached_here(node, candidate) {
        let names: Vec<_> = names.iter().map(|it| format!("bridge {it}")).collect();
        let lacks = match names.as_slice() {
            [] => "no link of the network".to_owned(),
            names => format!("neither {} nor a link of the network", names.join(", ")),
        };
        return Err(format!(
            "this network namespace has {lacks}: it is not the host's, or the node was rebooted"
        ));
    }
    Ok(bridges)
}

/// Returns whether plugins attached sandboxes to the network of `candidate` in this network
/// namespace: whether a link is tagged with an attachment to it, or an untagged link has a sandbox
/// with an address that is leased in it. Elements of `nf_tables` alone prove nothing, because a
/// saved ruleset may be loaded in any namespace. They count if the attachment has a cached result,
/// whose sandbox is gone.
fn is_attached_here(node: &Node, candidate: &Candidate<'_>) -> bool {
    let network = &candidate.attachment.network;
    let mut elements = node.firewall.elements.iter();
    let is_tagged = |owner: &str| Attachment::is_owner_in(owner, network);
    let leads_to = |it: &Lease| {
        it.network == network.as_str() && node.host_links.of_address(it.address).is_some()
    };
    node.host_links.of_owner(is_tagged).is_some()
        || candidate.cached.is_some() && elements.any(|it| is_tagged(&it.owner))
        || node.leases.iter().any(leads_to)
}

/// Returns the configuration lists of the network: the current ones, and those that a runtime
/// cached at the ADD of each cached attachment.
fn networks(node: &Node, name: &NetworkName) -> Vec<Conflist> {
    let lists = node.configuration.networks().map(|(_, it)| &it.list);
    let attached = node.attached.iter();
    let attached = attached.filter(|it| it.attachment.network == *name);
    let then = attached.filter_map(|it| it.network(&node.configuration));
    let now = lists.filter(|it| it.name == *name);
    now.cloned().chain(then).collect()
}

/// Longest time for which an ADD may run between the lease of an address and the creation of the
/// link. A younger lease without a link may belong to a running ADD, so the attachment does not
/// count as gone. The kubelet gives up an ADD after four minutes.
const LONGEST_ADD: Duration = Duration::from_mins(5);
