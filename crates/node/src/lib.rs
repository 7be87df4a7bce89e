//! Reads the state of a node once, from the kernel and the disk, and judges nothing.
//!
//! A part that cannot be read stays empty, and [`Node::unread`] lists it with the reason. So
//! reading a node never fails as a whole.

mod attachments;
mod configuration;
mod container_runtimes;
mod disk;
mod expected;
mod firewall;
mod host_links;
mod kernel;
mod localnet;
mod lookup;
mod managers;
mod occupied;
pub mod plugins;
mod pods;
mod probe;
mod program;
mod programs;
mod range;
mod sockets;
mod traces;
mod witnesses;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use attach::{BRIDGE_NF_CALL, sees_frames};
use cluster::STATE_FILE;
use facts::MissingFeature;
use netlink::{Address, Forwarding, Link, LinkCounters, Neighbour, Route};
use runtime::Directories;
pub use tc::CountedLimit;

pub use self::attachments::{Attached, Lease};
use self::attachments::{attached, data_directories, egress_limits, leases};
pub use self::configuration::{Configuration, File, Network, Program, Source};
use self::container_runtimes::containerd_version;
pub use self::container_runtimes::{ContainerRuntime, Lookup};
pub use self::disk::Disk;
pub use self::firewall::{
    Condition, Firewall, OwnedElement, REFERENCE_MASQUERADE, REFERENCE_PORTMAP, REFERENCE_TABLES,
    RuleComment, TableState,
};
pub use self::host_links::{HostLink, HostLinks};
pub use self::localnet::Localnet;
pub use self::lookup::{
    ConfigWarning, bridge_of, elements, elements_in, facts, ipam, is_routed, lease_directories,
    tables, warnings,
};
pub use self::managers::{Managed, Managers};
pub use self::occupied::RUNTIME_SOCKETS;
pub use self::plugins::PLUGINS;
pub use self::pods::{Inside, Pod};
pub use self::probe::{Outcome, Path as PacketPath, Probe, Stage, Trial};
pub use self::program::output_of;
pub use self::programs::Refusal;
pub use self::range::{Range, pod_networks};
pub use self::sockets::Socket;
pub use self::traces::{Traces, owner_of};
pub use self::witnesses::Witnessed;

/// The state of a node.
#[derive(Debug, Default)]
pub struct Node {
    /// The configured networks, and the plugins that they name.
    pub configuration: Configuration,
    /// Container runtimes, and where they look for plugins. Only [`Node::read`] reads them.
    pub container_runtimes: Vec<ContainerRuntime>,
    /// All links, as `ip link show` lists them.
    pub links: Vec<Link>,
    /// Host ends of veth pairs whose other ends are in sandboxes.
    pub host_links: HostLinks,
    /// Network namespaces in which processes run, by their numbers ([`Link::peer_namespace`]).
    /// `None` if [`Node::read_processes`] did not read them, or does not see all.
    pub occupied: Option<BTreeSet<i32>>,
    /// Addresses of all links, as `ip address show` lists them.
    pub addresses: Vec<Address>,
    /// Unicast routes of all tables.
    pub routes: Vec<Route>,
    /// Routes that drop packets, of all tables.
    pub discarding_routes: Vec<Route>,
    /// Neighbours of all links whose MACs the kernel knows. Only [`Node::read`] reads them.
    pub neighbours: Vec<Neighbour>,
    /// Entries of VXLAN devices. Only [`Node::read`] reads them.
    pub forwarding: Vec<Forwarding>,
    /// Live attachments whose host end of the veth pair exists, with their sandboxes' links,
    /// addresses and routes.
    pub pods: Vec<Pod>,
    /// Limits of the traffic that links send, as this suite or the Go plugin `bandwidth` set them,
    /// by the index of the link.
    pub limits: BTreeMap<u32, CountedLimit>,
    /// Limits of what the sandboxes of live attachments send, by the attachment's tag. Without
    /// sandboxes that cannot be entered.
    pub egress_limits: BTreeMap<String, CountedLimit>,
    /// Traffic counters of links, by the index of the link. Only [`Node::counted`] reads them.
    pub counters: BTreeMap<u32, LinkCounters>,
    /// Kernel features that plugins may need and the kernel lacks.
    pub missing_features: Vec<MissingFeature>,
    /// Values of forwarding, `route_localnet` and `bridge-nf-call-*`, by the parameter's name.
    /// Without parameters that the kernel lacks.
    pub sysctls: BTreeMap<String, String>,
    /// Whether `/proc/sys` is mounted read-only, as in a nested container.
    pub has_read_only_sysctls: bool,
    /// What systemd-networkd and `NetworkManager` do to the node's links.
    pub managers: Managers,
    /// Ports that processes of the node listen on.
    pub sockets: Vec<Socket>,
    /// Version of the containerd that runs on the node, such as `1.6.20`; `None` if none runs, or if
    /// CRI-O runs, too. Only [`Node::read`] asks for it.
    pub containerd: Option<String>,
    /// Errors that plugins returned for STATUS.
    pub refusals: Vec<Refusal>,
    /// Messages about things of the host that attachments took and that have not come back.
    pub unreturned: Vec<String>,
    /// What cni-agent knows of its cluster; `None` if it joins this node to none.
    pub cluster: Option<cluster::State>,
    /// File systems on which host-local keeps leases.
    pub disks: Vec<Disk>,
    /// State of `nf_tables`: among others the elements of this suite, and all chains.
    pub firewall: Firewall,
    /// States of this suite's tables in `nf_tables`. Only [`Node::read`] and [`Node::counted`] read
    /// them.
    pub tables: Vec<TableState>,
    /// Whether `IPsec` policies protect 127.0.0.0/8 against neighbours, and the links for which
    /// portmap set `route_localnet`.
    pub localnet: Localnet,
    /// Outcomes of packets that [`Node::try_packets`] sent through a copy of the firewall rules.
    pub probes: Vec<Probe>,
    /// Links that live in sandboxes alone, by their attachments' tags.
    pub witnesses: BTreeMap<String, Witnessed>,
    /// Attachments for which a runtime's cache has an entry.
    pub attached: Vec<Attached>,
    /// Number of files in runtimes' caches that are not valid entries.
    pub invalid_entries: usize,
    /// Leases of all networks, including leases that name no attachment.
    pub leases: Vec<Lease>,
    /// Released addresses that host-local does not lease again before `reuseDelay` has passed, each
    /// after the name of its network. Only [`Node::counted`] reads them.
    pub resting: BTreeSet<(String, IpAddr)>,
    /// Parts that could not be read, with the reason.
    pub unread: Vec<(Part, String)>,
}

/// A part of the node's state. If one part cannot be read, the others are still read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
#[display(rename_all = "lowercase")]
pub enum Part {
    /// The directory of network configurations.
    Configuration,
    /// The cache of runtimes.
    Cache,
    /// The directories of leases.
    Leases,
    /// `nf_tables`
    Firewall,
    /// Links, addresses and routes.
    Links,
    /// Kernel features.
    Kernel,
    /// `IPsec` policies.
    Policies,
    /// The file in which cni-agent keeps the nodes of its cluster.
    Cluster,
}

impl Node {
    /// Reads the node's state in the network namespace of this process. Leaves empty what only
    /// [`Node::counted`] or [`Node::try_packets`] reads.
    pub fn read(directories: &Directories) -> Self {
        let mut node = Self::attachments(directories);
        if node.unread.iter().all(|it| it.0 != Part::Firewall) {
            (node.tables, _) = node.take(Part::Firewall, TableState::read_all());
        }
        node.configuration.find_programs(directories);
        node.container_runtimes = ContainerRuntime::read_all(&node.configuration);
        node.refusals = programs::refusals(directories, &node.configuration);
        node.containerd = containerd_version();
        node.missing_features = node.take(Part::Kernel, kernel::missing_features());
        node.sysctls = kernel::sysctls(&node.forwarding_links());
        node.has_read_only_sysctls = kernel::are_sysctls_read_only();
        node.pods = node.take(Part::Links, pods::pods(&node));
        let (neighbours, forwarding) = node.take(Part::Links, neighbours());
        node.neighbours = neighbours;
        node.forwarding = forwarding;
        node.unreturned = node.take(Part::Links, unreturned());
        let state = cluster::State::read(Path::new(STATE_FILE)).context(STATE_FILE);
        node.cluster = node.take(Part::Cluster, state);
        node.localnet = node.take(Part::Policies, Localnet::read());
        node.managers = Managers::read(&node.links);
        node.sockets = sockets::listening();
        node.disks = disk::disks(&data_directories(&node.configuration));
        let sockets = RUNTIME_SOCKETS.iter().map(PathBuf::from);
        let sockets: Vec<_> = sockets.filter(|it| it.exists()).collect();
        node.read_processes(&sockets);
        node
    }

    /// Reads in which network namespaces processes run, if this process sees the processes of the
    /// runtimes that listen at `sockets`, and so those of all their pods.
    pub fn read_processes(&mut self, sockets: &[PathBuf]) {
        self.occupied = occupied::occupied(sockets);
    }

    /// Sends packets through a copy of the node's firewall rules, and stores their outcomes in
    /// [`Node::probes`]. Does nothing if [`Node::read`] could not read `nf_tables`.
    pub fn try_packets(&mut self, stages: &[Stage]) {
        if stages.is_empty() || self.unread.iter().any(|it| it.0 == Part::Firewall) {
            return;
        }
        self.probes = probe::probe(stages, &self.firewall.legacy);
    }

    /// Reads the parts that show which attachments exist. Calls no plugin.
    ///
    /// This function reads leases first and links last, in the order in which an ADD makes them. So
    /// if it sees the lease of a concurrent ADD, it usually sees the link, too, which proves that
    /// the attachment is live. The exception is an ADD that has its lease but not yet its link.
    pub fn attachments(directories: &Directories) -> Self {
        let mut node = Self::leased(directories);
        node.firewall = node.take(Part::Firewall, Firewall::read());
        (node.attached, node.invalid_entries) =
            node.take(Part::Cache, attached(&directories.cache));
        node.witnesses = node.take(Part::Cache, witnesses::read());
        let links = node.read_links();
        node.take(Part::Links, links);
        node
    }

    /// Reads only what metrics need, such as leases, attachments, and counters of links. Calls no
    /// plugin, and does not read the node's addresses and routes.
    pub fn counted(directories: &Directories) -> Self {
        let mut node = Self::leased(directories);
        node.resting = node.take(Part::Leases, range::resting(&node.configuration));
        (node.tables, node.firewall.elements) = node.take(Part::Firewall, TableState::read_all());
        (node.attached, node.invalid_entries) =
            node.take(Part::Cache, attached(&directories.cache));
        node.witnesses = node.take(Part::Cache, witnesses::read());
        let counters = node.read_counters();
        node.take(Part::Links, counters);
        node
    }

    fn leased(directories: &Directories) -> Self {
        let mut node = Self::default();
        node.configuration = node.take(Part::Configuration, Configuration::read(directories));
        let mut data_directories = data_directories(&node.configuration);
        data_directories.extend(directories.cache.0.iter().map(|it| it.join("networks")));
        node.leases = node.take(Part::Leases, leases(&data_directories));
        node
    }

    /// Returns the value of `read`. If `read` is an error, adds the error to [`Node::unread`] and
    /// returns the default value.
    fn take<T: Default, E: Into<anyhow::Error>>(&mut self, part: Part, read: Result<T, E>) -> T {
        read.unwrap_or_else(|error| {
            self.unread.push((part, message(error)));
            T::default()
        })
    }

    fn read_links(&mut self) -> anyhow::Result<()> {
        let connection = self.read_limits()?;
        self.host_links = HostLinks::read(&self.links);
        self.addresses = connection.every_address()?;
        self.routes = connection.routes()?;
        self.discarding_routes = connection.discarding_routes()?;
        Ok(())
    }

    fn read_counters(&mut self) -> anyhow::Result<()> {
        let counters = self.read_limits()?.link_counters()?.into_iter();
        self.counters = counters.map(|it| (it.link, it)).collect();
        Ok(())
    }

    /// Reads the links and their limits. Returns the socket.
    fn read_limits(&mut self) -> anyhow::Result<netlink::Connection> {
        let connection = netlink::Connection::open()?;
        self.links = connection.links()?;
        self.limits = tc::counted_limits(&connection)?;
        self.egress_limits = egress_limits(&self.attached);
        Ok(connection)
    }

    /// Returns the names of the configured bridges and of the uplinks. The kernel forwards packets
    /// of pods between these links.
    fn forwarding_links(&self) -> BTreeSet<&str> {
        let mut links = self.configuration.bridges();
        links.extend(self.uplinks().iter().map(|it| it.name.as_str()));
        links
    }

    /// Returns the links of the default routes in the tables that the kernel looks up for every
    /// packet, without duplicates, sorted by index.
    pub fn uplinks(&self) -> Vec<&Link> {
        let routes = self.routes.iter();
        let default = routes.filter(|it| it.is_default() && is_looked_up(it.table));
        let links: BTreeSet<_> = default.flat_map(Route::links).collect();
        links.into_iter().filter_map(|it| self.link(it)).collect()
    }

    /// Returns the value of a kernel parameter by its name in sysctl(8); `None` if the kernel lacks
    /// the parameter or [`Node::read`] does not read it.
    pub fn sysctl(&self, key: &str) -> Option<&str> {
        self.sysctls.get(key).map(String::as_str)
    }

    /// Returns whether netfilter sees the frames that `bridge` forwards, first of IPv4, then of
    /// IPv6, by the sysctls or by the bridge's own flags.
    pub fn sees_frames(&self, bridge: &Link) -> [bool; 2] {
        let keys = BRIDGE_NF_CALL.map(|it| format!("net.bridge.{it}"));
        sees_frames(bridge, keys.each_ref().map(|it| self.sysctl(it)))
    }

    /// Returns the link with this name; `None` if there is none.
    pub fn link_called(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|it| it.name == name)
    }

    /// Returns the ports of the bridge with this index.
    pub fn ports(&self, bridge: u32) -> impl Iterator<Item = &Link> {
        let links = self.links.iter();
        links.filter(move |it| it.master == Some(bridge))
    }

    /// Returns the addresses of the link with this index.
    pub fn addresses_of(&self, link: u32) -> impl Iterator<Item = &Address> {
        self.addresses.iter().filter(move |it| it.link == link)
    }

    /// Returns whether the link has this address, with any prefix length.
    pub fn has_address(&self, link: u32, address: IpAddr) -> bool {
        let mut addresses = self.addresses_of(link);
        addresses.any(|it| it.address.ip() == address)
    }

    /// Returns the cached attachments whose sandboxes exist, or for which this process cannot find
    /// out.
    pub fn alive(&self) -> impl Iterator<Item = &Attached> {
        self.attached.iter().filter(|it| it.is_alive)
    }

    /// Returns whether a link with the name of this bridge exists and has ports.
    pub fn is_in_use(&self, bridge: &str) -> bool {
        let bridge = self.link_called(bridge);
        bridge.is_some_and(|it| self.ports(it.index).next().is_some())
    }

    /// Returns the link with this index; `None` if there is none.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|it| it.index == index)
    }

    /// Returns the name of the link with this index, or `?` without such a link.
    pub fn link_name(&self, index: u32) -> &str {
        self.link(index).map_or("?", |it| &it.name)
    }
}

fn unreturned() -> anyhow::Result<Vec<String>> {
    let each = PLUGINS.iter().map(|it| (it.unreturned)());
    Ok(each.collect::<Result<Vec<_>, _>>()?.concat())
}

fn neighbours() -> Result<(Vec<Neighbour>, Vec<Forwarding>), netlink::Error> {
    let connection = netlink::Connection::open()?;
    Ok((connection.neighbours()?, connection.forwarding()?))
}

/// Returns whether the kernel looks up every packet in the routing table with this number. These
/// tables are `local`, `main` and `default`. The kernel uses other tables only for packets that
/// match a rule (ip-rule(8)), and this crate does not read those rules.
pub fn is_looked_up(table: u32) -> bool {
    (DEFAULT_TABLE..=LOCAL_TABLE).contains(&table)
}

/// Number of the routing table `default` (`RT_TABLE_DEFAULT`), the first of three consecutive
/// numbers: 254 is `main`, 255 is `local`.
const DEFAULT_TABLE: u32 = 253;
const LOCAL_TABLE: u32 = 255;

fn message(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}
