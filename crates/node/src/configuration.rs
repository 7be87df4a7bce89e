//! Network configurations, and the plugins that they name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cni::SearchPath;
use ipnetwork::IpNetwork;
use runtime::{Abilities, Conflist, Directories, PluginConfig};
use rustix::fs::{StatVfsMountFlags, statvfs};
use serde_json::Value;

use super::keys::bridge_of;
use super::pod_cidrs;

/// The configured networks and their plugins.
#[derive(Debug, Default)]
pub struct Configuration {
    /// The directory of network configurations (`NETCONFPATH`).
    pub directory: PathBuf,
    /// `CNI_PATH` as the caller wrote it.
    pub path: String,
    /// Configuration files in the order in which runtimes read them: by name.
    pub files: Vec<File>,
    /// State of each plugin that a network names, by name.
    pub programs: BTreeMap<String, Program>,
}

/// A configuration file.
#[derive(Debug)]
pub struct File {
    /// The name, without the directory.
    pub name: String,
    /// The network that the file configures, or why the file is invalid.
    pub network: Result<Network, String>,
}

/// A valid network.
#[derive(Debug)]
pub struct Network {
    /// The parsed list.
    pub list: Conflist,
    /// The JSON document of the list, with keys that [`Conflist`] does not use.
    pub document: Value,
    /// The text of the file.
    pub text: String,
    /// The node's pod CIDRs, by the path of the `podCidrFile`.
    pub pod_cidrs: BTreeMap<PathBuf, Vec<IpNetwork>>,
}

/// State of a plugin executable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// The executable answers VERSION.
    Found {
        /// The path.
        path: PathBuf,
        /// The versions of the specification that the plugin reports; `None` if it reports none.
        versions: Option<Vec<String>>,
        /// Whether the plugin reports its verbs, which only plugins of this suite do.
        is_ours: bool,
    },
    /// The file exists without an execute permission.
    NotExecutable(PathBuf),
    /// The file is on a file system with the mount option `noexec`.
    NotExecutableMount(PathBuf),
    /// The executable answers VERSION neither with a result nor with an error of the specification.
    Broken {
        /// The path.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// No directory of `CNI_PATH` has the executable.
    Missing,
}

/// A plugin with its network and file.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    configuration: &'a Configuration,
    /// The configuration file.
    pub file: &'a File,
    /// The network.
    pub network: &'a Network,
    /// The plugin.
    pub plugin: &'a PluginConfig,
}

impl Configuration {
    /// Reads the directory of networks and the files that they name.
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

    /// Finds the plugins, and asks each for its versions.
    pub(super) fn find_programs(&mut self, directories: &Directories) {
        let names: BTreeSet<_> = self.sources().flat_map(|it| it.plugin.programs()).collect();
        let programs = names.into_iter();
        let programs = programs.map(|it| (it.to_owned(), program(&directories.plugins, it)));
        self.programs = programs.collect();
    }

    /// Returns whether the executable with this name is a plugin of this suite.
    pub fn has_ours(&self, name: &str) -> bool {
        let program = self.programs.get(name);
        matches!(program, Some(Program::Found { is_ours: true, .. }))
    }

    /// Returns all valid networks with their files.
    pub fn networks(&self) -> impl Iterator<Item = (&File, &Network)> {
        let files = self.files.iter();
        files.filter_map(|file| Some((file, file.network.as_ref().ok()?)))
    }

    /// Returns all plugins of all valid networks.
    pub fn sources(&self) -> impl Iterator<Item = Source<'_>> {
        self.networks().flat_map(move |(file, network)| {
            let plugins = network.list.plugins.iter();
            plugins.map(move |plugin| Source {
                configuration: self,
                file,
                network,
                plugin,
            })
        })
    }

    /// Returns the file that runtimes use: the first by name, if it is valid.
    pub fn chosen(&self) -> Option<&File> {
        self.files.first().filter(|file| file.network.is_ok())
    }

    /// Returns the network with this name.
    pub fn network(&self, name: &str) -> Option<&Network> {
        let mut networks = self.networks().map(|(_, it)| it);
        networks.find(|it| it.list.name.as_str() == name)
    }

    /// Returns the names of the bridges of all networks, without duplicates.
    pub fn bridges(&self) -> BTreeSet<&str> {
        self.sources().filter_map(Source::bridge).collect()
    }

    /// Returns the path of the file.
    pub fn place(&self, file: &File) -> String {
        self.directory.join(&file.name).display().to_string()
    }
}

impl File {
    fn read(path: &Path) -> Self {
        let read = || {
            let text = fs::read(path)?;
            let directory = path.parent().unwrap_or(Path::new("."));
            let mut network = Network::parse(&runtime::with_parts(text.clone(), directory)?)?;
            network.text = String::from_utf8_lossy(&text).into_owned();
            network.pod_cidrs = pod_cidrs::of(&network.list);
            Ok(network)
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Self::new(&name, read())
    }

    /// Parses a file from its name and content.
    pub fn parse(name: &str, bytes: &[u8]) -> Self {
        Self::new(name, Network::parse(bytes))
    }

    fn new(name: &str, network: anyhow::Result<Network>) -> Self {
        Self {
            name: name.to_owned(),
            network: network.map_err(super::message),
        }
    }

    /// Returns whether the name has the extension of a list.
    pub fn is_list(&self) -> bool {
        let extension = Path::new(&self.name).extension();
        extension.is_some_and(|it| it == "conflist")
    }
}

impl Network {
    fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        Ok(Self {
            document: serde_json::from_slice(bytes)?,
            list: Conflist::parse(bytes.to_owned())?,
            text: String::from_utf8_lossy(bytes).into_owned(),
            pod_cidrs: BTreeMap::new(),
        })
    }
}

impl<'a> Source<'a> {
    /// Returns the path of the file.
    pub fn place(self) -> String {
        self.configuration.place(self.file)
    }

    /// Returns the items of a key's list; empty if the key is absent.
    pub fn list(self, name: &str) -> &'a [Value] {
        let list = self.plugin.key(name).and_then(Value::as_array);
        list.map_or(&[], Vec::as_slice)
    }

    /// Returns the node's pod CIDRs if the IPAM plugin leases from them, else an empty list.
    pub fn pod_cidrs(self) -> &'a [IpNetwork] {
        let file = self.plugin.ipam().and_then(pod_cidrs::file_of);
        let cidrs = file.and_then(|it| self.network.pod_cidrs.get(it));
        cidrs.map_or(&[], Vec::as_slice)
    }

    /// Returns the name of the bridge that a plugin `bridge` uses; `None` for other plugins.
    pub fn bridge(self) -> Option<&'a str> {
        bridge_of(self.plugin)
    }

    /// Returns whether the node is the gateway of the pods.
    pub fn is_gateway(self) -> bool {
        let mut keys = ["isGateway", "isDefaultGateway"].into_iter();
        self.is_routed() || keys.any(|it| self.plugin.is_set(it))
    }

    /// Returns whether the plugin is `ptp`. Then the node has a route to each pod through the host
    /// end of that pod's veth pair.
    pub fn is_routed(self) -> bool {
        self.plugin.program == "ptp"
    }

    /// Returns whether the network is in a VLAN of its bridge. Then the gateway's address is on the
    /// VLAN's link instead of the bridge.
    pub fn has_vlan(self) -> bool {
        self.plugin.key("vlan").and_then(Value::as_u64) > Some(0)
    }

    /// Returns the network's name.
    pub fn name(self) -> &'a str {
        self.network.list.name.as_str()
    }
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
