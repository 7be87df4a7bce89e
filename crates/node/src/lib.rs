//! A node as it is, read from the kernel and the disk and judged by nobody.
//!
//! What cannot be read is noted, and stays empty: a node that is broken is looked at all the same.

mod attachments;
mod configuration;
mod disk;
mod firewall;
mod host_links;
mod kernel;
mod keys;
mod localnet;
mod managers;
mod pod_cidrs;
mod pods;
mod probe;
mod programs;
mod sockets;
mod sysctls;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use netlink::{Address, DiscardingRoute, Link, LinkKind, Route};
use runtime::Directories;

pub use self::attachments::{Attached, Lease, Place, leases, places};
pub use self::configuration::{Configuration, File, Network, Program, Source};
pub use self::disk::Disk;
pub use self::firewall::{Firewall, Held, REFERENCE_MASQUERADE, REFERENCE_PORTMAP, Remark, tables};
pub use self::host_links::{HostLink, HostLinks};
pub use self::kernel::{Consequence, Lack, Need};
pub use self::keys::{bridge_of, lease_directories};
pub use self::localnet::Localnet;
pub use self::managers::{Managed, Managers};
pub use self::pods::{Inside, Pod};
use self::probe::Rules;
pub use self::probe::{Fate, Path as PacketPath, Probe, Protocol, Stage};
pub use self::programs::Refusal;
pub use self::sockets::Socket;
pub use self::sysctls::Sysctls;

/// What was read.
#[derive(Debug, Default)]
pub struct Node {
    /// Networks and the plugins that they name.
    pub configuration: Configuration,
    /// As `ip link show`.
    pub links: Vec<Link>,
    /// Those of them that lead to sandboxes.
    pub host_links: HostLinks,
    /// As `ip address show`.
    pub addresses: Vec<Address>,
    /// As `ip route show table all`.
    pub routes: Vec<Route>,
    /// Routes that drop packets, of all tables.
    pub discarding_routes: Vec<DiscardingRoute>,
    /// Live attachments whose host links exist, with what is inside their sandboxes.
    pub pods: Vec<Pod>,
    /// What leaves by a link of this name is limited to so many bits a second.
    pub limits: BTreeMap<String, u64>,
    /// What the kernel cannot do of all that plugins may need.
    pub lacks: Vec<Lack>,
    /// Parameters of the kernel.
    pub sysctls: Sysctls,
    /// Who else looks after links.
    pub managers: Managers,
    /// What processes of the node listen on.
    pub sockets: Vec<Socket>,
    /// What plugins say when they are asked for STATUS, unless that is nothing.
    pub refusals: Vec<Refusal>,
    /// The file systems on which leases lie.
    pub disks: Vec<Disk>,
    /// What `nf_tables` has of ours, and what of others stands in the way.
    pub firewall: Firewall,
    /// What guards 127.0.0.0/8 beside it.
    pub localnet: Localnet,
    /// What became of packets that were sent through a copy of all rules.
    pub probes: Vec<Probe>,
    /// What runtimes remember of attachments.
    pub attached: Vec<Attached>,
    /// The leases of all networks, those that name nobody too.
    pub leases: Vec<Lease>,
    /// What could not be read, and why.
    pub unread: Vec<(Part, String)>,
}

/// What is read by itself, and may fail by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The directory of networks.
    Configuration,
    /// What runtimes remember.
    Cache,
    /// The directories of leases.
    Leases,
    /// `nf_tables`
    Firewall,
    /// Links, addresses and routes.
    Links,
    /// What the kernel can do.
    Kernel,
    /// Policies of `IPsec`.
    Policies,
}

impl Node {
    /// Reads all of it, in the namespace that this process is in.
    pub fn read(directories: &Directories) -> Self {
        let mut node = Self::attachments(directories);
        node.configuration.find_programs(directories);
        node.refusals = programs::refusals(directories, &node.configuration);
        node.lacks = node.unread.take(Part::Kernel, kernel::lacks());
        node.sysctls = Sysctls::read(&node.forwarding_links());
        node.pods = node.unread.take(Part::Links, pods::pods(&node));
        node.localnet = node.unread.take(Part::Policies, Localnet::read());
        node.managers = Managers::read(&node.links);
        node.sockets = sockets::listening();
        node.disks = disk::disks(&places(&node.configuration));
        node
    }

    /// Sends packets through a copy of the node's rules, where those could be read.
    pub fn try_packets(&mut self, stages: &[Stage]) {
        if stages.is_empty() || self.unread.iter().any(|it| it.0 == Part::Firewall) {
            return;
        }
        match Rules::read(&self.firewall.legacy) {
            Ok(rules) => self.probes = stages.iter().map(|it| rules.probe(it)).collect(),
            Err(error) => {
                let reason = words(error);
                let untried = stages.iter().map(|it| Probe::failed(it, reason.clone()));
                self.probes = untried.collect();
            }
        }
    }

    /// Reads what tells of attachments, and asks no plugin.
    ///
    /// What an ADD makes first is read first, and the links, which prove that an attachment lives, last of all: an
    /// ADD that runs meanwhile is not seen, or seen with its link, unless it has only just got its lease.
    pub fn attachments(directories: &Directories) -> Self {
        let mut unread = Vec::new();
        let configuration = unread.take(Part::Configuration, Configuration::read(directories));
        let mut node = Self {
            leases: unread.take(Part::Leases, leases(&places(&configuration))),
            firewall: unread.take(Part::Firewall, Firewall::read()),
            attached: unread.take(Part::Cache, attachments::attached(directories)),
            configuration,
            ..Self::default()
        };
        unread.take(Part::Links, node.read_links());
        node.unread = unread;
        node
    }

    fn read_links(&mut self) -> anyhow::Result<()> {
        let connection = netlink::Connection::open()?;
        self.links = connection.links()?;
        self.host_links = HostLinks::read(&connection, &self.links);
        self.addresses = connection.every_address()?;
        self.routes = connection.routes()?;
        self.discarding_routes = connection.discarding_routes()?;
        let limited = |it: &&Link| matches!(it.kind, LinkKind::Veth | LinkKind::Ifb);
        for link in self.links.iter().filter(limited) {
            let leaving = tc::Leaving {
                connection: &connection,
                link,
            };
            if let Some(rate) = leaving.rate()? {
                self.limits.insert(link.name.clone(), rate);
            }
        }
        Ok(())
    }

    /// Names of the links between which pods' packets are forwarded: bridges and uplinks.
    fn forwarding_links(&self) -> BTreeSet<&str> {
        let mut links = self.configuration.bridges();
        links.extend(self.uplinks().iter().map(|it| it.name.as_str()));
        links
    }

    /// The links of the default routes that packets of pods take, each once, in the order of
    /// their indexes.
    pub fn uplinks(&self) -> Vec<&Link> {
        let routes = self.routes.iter();
        let default = routes.filter(|it| it.is_default() && is_looked_up(it.table));
        let links: BTreeSet<_> = default.flat_map(Route::links).collect();
        links.into_iter().filter_map(|it| self.link(it)).collect()
    }

    /// The link called `name`.
    pub fn link_called(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|it| it.name == name)
    }

    /// The ports of the bridge with this index.
    pub fn ports(&self, bridge: u32) -> impl Iterator<Item = &Link> {
        self.links
            .iter()
            .filter(move |it| it.master == Some(bridge))
    }

    /// The link with this index.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|it| it.index == index)
    }

    /// The name of the link with this index.
    pub fn link_name(&self, index: u32) -> &str {
        self.link(index).map_or("?", |it| &it.name)
    }
}

/// Every packet is looked up in this routing table. Others need a rule that names them
/// (ip-rule(8)), and who meets those rules is not judged.
pub fn is_looked_up(table: u32) -> bool {
    (DEFAULT_TABLE..=LOCAL_TABLE).contains(&table)
}

/// `RT_TABLE_DEFAULT`, before `RT_TABLE_MAIN`, and `RT_TABLE_LOCAL`
const DEFAULT_TABLE: u32 = 253;
const LOCAL_TABLE: u32 = 255;

/// Notes what could not be read.
trait Take {
    fn take<T: Default, E: Into<anyhow::Error>>(&mut self, part: Part, read: Result<T, E>) -> T;
}

impl Take for Vec<(Part, String)> {
    fn take<T: Default, E: Into<anyhow::Error>>(&mut self, part: Part, read: Result<T, E>) -> T {
        read.unwrap_or_else(|error| {
            self.push((part, words(error)));
            T::default()
        })
    }
}

fn words(error: impl Into<anyhow::Error>) -> String {
    let error: anyhow::Error = error.into();
    let chain: &dyn Display = &format_args!("{error:#}");
    chain.to_string()
}
