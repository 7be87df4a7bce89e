//! Reads the network configurations, and finds the plugins that they name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cni::keys::RawRoute;
use cni::{SearchPath, json};
use facts::{Addresses, Keys, read};
use host_local::pod_cidr;
use ipnetwork::IpNetwork;
use runtime::{Abilities, Conflist, Directories, PluginConfig};
use rustix::fs::{StatVfsMountFlags, statvfs};
use serde::Deserialize;
use serde_json::Value;

use super::lookup::{bridge_of, ipam, is_routed};

/// The configured networks and their plugins.
#[derive(Debug, Default)]
pub struct Configuration {
    /// The directory of network configurations (`NETCONFPATH`).
    pub directory: PathBuf,
    /// `CNI_PATH`: the directories of plugins, separated by colons.
    pub path: String,
    /// Configuration files in the order in which runtimes read them: by name.
    pub files: Vec<File>,
    /// State of each plugin that a network names, by the plugin's name. Only [`crate::Node::read`]
    /// fills this map.
    pub programs: BTreeMap<String, Program>,
}

/// A network configuration file.
#[derive(Debug)]
pub struct File {
    /// Name of the file, without the directory.
    pub name: String,
    /// The network that the file configures, or why the file is invalid.
    pub network: Result<Network, String>,
}

/// A network from a valid configuration file.
#[derive(Debug)]
pub struct Network {
    /// The parsed configuration list.
    pub list: Conflist,
    /// [`Conflist::all_plugins`] of the list.
    pub plugins: Vec<PluginConfig>,
    /// The list as a JSON document, which also has the keys that [`Conflist`] does not use.
    pub document: Value,
    /// The text of the configuration file.
    pub text: String,
    /// The node's pod CIDRs, by the path of the file that contains them (`podCidrFile`).
    pub pod_cidrs: BTreeMap<PathBuf, Vec<IpNetwork>>,
}

/// State of a plugin executable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// The executable can be run, and VERSION succeeds or fails with an error code other than 100,
    /// the code for failures of any kind.
    Found {
        /// Path of the executable.
        path: PathBuf,
        /// Versions of the specification that the plugin reports; `None` if it reports none.
        versions: Option<Vec<String>>,
        /// Whether the plugin belongs to this suite. Only such plugins report their verbs.
        is_ours: bool,
    },
    /// The file exists, but has no execute permission.
    NotExecutable(PathBuf),
    /// The file is on a file system with the mount option `noexec`.
    NotExecutableMount(PathBuf),
    /// The executable cannot be run, or VERSION takes too long, or fails without an error code or
    /// with the code 100.
    Broken {
        /// Path of the executable.
        path: PathBuf,
        /// Why the call of VERSION failed.
        reason: String,
    },
    /// No directory of `CNI_PATH` contains the executable.
    Missing,
}

/// The routes in an `ipam` section.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Section {
    routes: Vec<RawRoute>,
}

/// A plugin in the configuration of a network.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    configuration: &'a Configuration,
    /// The file that configures the network.
    pub file: &'a File,
    /// The network that names the plugin.
    pub network: &'a Network,
    /// The plugin's section in the configuration list.
    pub plugin: &'a PluginConfig,
}

impl Configuration {
    /// Reads the configuration files in the directory of networks, and the further files that these
    /// refer to. Does not look for the plugins.
    ///
    /// # Errors
    /// The directory exists and cannot be listed.
    pub fn read(directories: &Directories) -> anyhow::Result<Self> {
        let directory = directories.networks.clone();
        let mut paths = runtime::candidates(&directory)?;
        paths.sort();
        Ok(Self {
            directory,
            path: directories.plugins.to_string(),
            files: paths.iter().map(|path| File::read(path)).collect(),
            ..Self::default()
        })
    }

    /// Looks for the executable of each plugin that a network names, calls VERSION of those that it
    /// finds, and stores the outcomes in [`Self::programs`].
    pub(super) fn find_programs(&mut self, directories: &Directories) {
        let names: BTreeSet<_> = self.sources().flat_map(|it| it.plugin.programs()).collect();
        let programs = names.into_iter();
        let programs = programs.map(|it| (it.to_owned(), program(&directories.plugins, it)));
        self.programs = programs.collect();
    }

    /// Returns whether the plugin with this name belongs to this suite. Returns `false` if no
    /// network names the plugin, or if its executable is missing or fails.
    pub fn has_ours(&self, name: &str) -> bool {
        let program = self.programs.get(name);
        matches!(program, Some(Program::Found { is_ours: true, .. }))
    }

    /// Returns all valid networks, each with its configuration file.
    pub fn networks(&self) -> impl Iterator<Item = (&File, &Network)> {
        let files = self.files.iter();
        files.filter_map(|file| Some((file, file.network.as_ref().ok()?)))
    }

    /// Returns all plugins of all valid networks, and those to which `flannel` delegates.
    pub fn sources(&self) -> impl Iterator<Item = Source<'_>> {
        self.networks().flat_map(move |(file, network)| {
            let plugins = network.plugins.iter();
            plugins.map(move |plugin| Source {
                configuration: self,
                file,
                network,
                plugin,
            })
        })
    }

    /// Returns the configuration file that runtimes use, which is the first one by name. Returns
    /// `None` if that file is invalid, or if there is no file.
    pub fn chosen(&self) -> Option<&File> {
        self.files.first().filter(|file| file.network.is_ok())
    }

    /// Returns the valid network with this name.
    pub fn network(&self, name: &str) -> Option<&Network> {
        let mut networks = self.networks().map(|(_, it)| it);
        networks.find(|it| it.list.name.as_str() == name)
    }

    /// Returns the names of all bridges that plugins `bridge` use, without duplicates.
    pub fn bridges(&self) -> BTreeSet<&str> {
        self.sources().filter_map(Source::bridge).collect()
    }

    /// Returns the path of a configuration file.
    pub fn place(&self, file: &File) -> String {
        self.directory.join(&file.name).display().to_string()
    }
}

impl File {
    fn read(path: &Path) -> Self {
        let read = || {
            let text = cni::files::read(path)?;
            let directory = path.parent().unwrap_or(Path::new("."));
            let mut network = Network::parse(&runtime::with_parts(text.clone(), directory)?)?;
            network.text = String::from_utf8_lossy(&text).into_owned();
            network.pod_cidrs = pod_cidrs(&network.plugins);
            Ok(network)
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Self::new(&name, read())
    }

    /// Parses `bytes`, the content of a configuration file called `name`. Reads no further files
    /// that the content refers to.
    pub fn parse(name: &str, bytes: &[u8]) -> Self {
        Self::new(name, Network::parse(bytes))
    }

    fn new(name: &str, network: anyhow::Result<Network>) -> Self {
        Self {
            name: name.to_owned(),
            network: network.map_err(super::message),
        }
    }

    /// Returns whether the file's name has the extension of configuration lists: `conflist`.
    pub fn is_list(&self) -> bool {
        let extension = Path::new(&self.name).extension();
        extension.is_some_and(|it| it == "conflist")
    }
}

impl Network {
    fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let list = Conflist::parse(bytes.to_owned())?;
        Ok(Self {
            document: serde_json::from_slice(bytes)?,
            plugins: list.all_plugins(),
            list,
            text: String::from_utf8_lossy(bytes).into_owned(),
            pod_cidrs: BTreeMap::new(),
        })
    }
}

impl<'a> Source<'a> {
    /// Returns the path of the plugin's configuration file.
    pub fn place(self) -> String {
        self.configuration.place(self.file)
    }

    /// Returns the items of the list that the plugin's key `name` contains; empty if the key is
    /// absent or contains no list.
    pub fn list(self, name: &str) -> &'a [Value] {
        let list = self.plugin.key(name).and_then(Value::as_array);
        list.map_or(&[], Vec::as_slice)
    }

    /// Returns the node's pod CIDRs if the `ipam` section configures leases from them; empty
    /// otherwise.
    pub fn pod_cidrs(self) -> &'a [IpNetwork] {
        let file = self.plugin.ipam().and_then(pod_cidr_file);
        let cidrs = file.and_then(|it| self.network.pod_cidrs.get(it));
        cidrs.map_or(&[], Vec::as_slice)
    }

    /// Returns the routes in the `ipam` section; `None` if it is missing or invalid, or if the
    /// IPAM plugin may get them elsewhere.
    pub fn ipam_routes(self) -> Option<Vec<RawRoute>> {
        let (facts, keys) = ipam(self.plugin)?;
        let is_known = !matches!(facts.addresses, Addresses::Elsewhere);
        Some(read::<Section>(keys).filter(|_| is_known)?.routes)
    }

    /// Returns the name of the bridge that a plugin `bridge` uses; `None` for other plugins.
    pub fn bridge(self) -> Option<&'a str> {
        bridge_of(self.plugin)
    }

    /// Returns whether the plugin makes the node the gateway of its pods: it routes to them, or its key
    /// `isGateway` or `isDefaultGateway` is `true`.
    pub fn is_gateway(self) -> bool {
        let mut keys = ["isGateway", "isDefaultGateway"].into_iter();
        self.is_routed() || keys.any(|it| self.plugin.is_set(it))
    }

    /// Returns whether the node has a route to each pod through the host end of that pod's veth
    /// pair, as with `ptp`.
    pub fn is_routed(self) -> bool {
        is_routed(self.plugin)
    }

    /// Returns whether the plugin puts its pods into a VLAN of the bridge (key `vlan` above 0).
    /// Then the gateway's address is on the VLAN's link instead of the bridge.
    pub fn has_vlan(self) -> bool {
        self.plugin.key("vlan").and_then(Value::as_u64) > Some(0)
    }

    /// Returns the name of the network.
    pub fn name(self) -> &'a str {
        self.network.list.name.as_str()
    }
}

/// Returns the pod CIDRs in each file that an `ipam` section of the plugins uses. The key is the path
/// of the file. An invalid file counts as empty, because host-local reports it at STATUS.
fn pod_cidrs(plugins: &[PluginConfig]) -> BTreeMap<PathBuf, Vec<IpNetwork>> {
    let files = plugins.iter().filter_map(PluginConfig::ipam);
    let files = files.filter_map(pod_cidr_file);
    let cidrs = |file: &Path| pod_cidr::read(file).unwrap_or_default();
    files.map(|file| (file.to_owned(), cidrs(file))).collect()
}

/// Returns the file with the pod CIDRs for this `ipam` section; `None` if the section's `subnet` is
/// not `usePodCidr`.
fn pod_cidr_file(ipam: &Keys) -> Option<&Path> {
    let text = |key| json::value(ipam, key).and_then(Value::as_str);
    pod_cidr::file_of(text("subnet")?, text("podCidrFile").unwrap_or_default())
}

fn program(search: &SearchPath, name: &str) -> Program {
    let Some(path) = search.find(name) else {
        let mut files = search.directories().iter().map(|it| it.join(name));
        return match files.find(|it| it.is_file()) {
            None => Program::Missing,
            Some(file) if is_on_noexec(&file) => Program::NotExecutableMount(file),
            Some(file) => Program::NotExecutable(file),
        };
    };
    let abilities = match runtime::ask_abilities(search, &path, name) {
        Ok(abilities) => abilities,
        Err(cni::Error::Delegate { object, .. }) if object.is_specific() => Abilities::default(),
        Err(error) => {
            let reason = error.to_string();
            return Program::Broken { path, reason };
        }
    };
    Program::Found {
        path,
        versions: abilities.supported_versions,
        is_ours: abilities.verbs.is_some(),
    }
}

fn is_on_noexec(file: &Path) -> bool {
    statvfs(file).is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::NOEXEC))
}
