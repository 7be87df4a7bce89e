//! Network configurations, and the plugins that they name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cni::{SearchPath, json};
use ipnetwork::IpNetwork;
use nix::sys::statvfs::{FsFlags, statvfs};
use runtime::{Abilities, Conflist, Directories, PluginConfig};
use serde_json::{Map, Value};

use super::keys::bridge_of;
use super::pod_cidrs;

/// The configured networks and their plugins.
#[derive(Debug, Default)]
pub struct Configuration {
    /// `NETCONFPATH`
    pub directory: PathBuf,
    /// `CNI_PATH` as the caller wrote it.
    pub path: String,
    /// Configuration files in the order in which runtimes read them: by name.
    pub files: Vec<File>,
    /// All plugins that networks name.
    pub programs: BTreeMap<String, Program>,
}

/// A configuration file.
#[derive(Debug)]
pub struct File {
    /// The name, without the directory.
    pub name: String,
    /// The network, or why the file is invalid.
    pub network: Result<Network, String>,
}

/// A valid network.
#[derive(Debug)]
pub struct Network {
    /// The parsed list.
    pub list: Conflist,
    /// The document before parsing.
    pub document: Value,
    /// The path.
    pub text: String,
    /// The node's pod CIDRs by `podCidrFile`.
    pub pod_cidrs: BTreeMap<PathBuf, Vec<IpNetwork>>,
}

/// State of a plugin executable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// It answers VERSION.
    Found {
        /// The path.
        path: PathBuf,
        /// The versions of the specification that it reports.
        versions: Option<Vec<String>>,
        /// It reports its verbs, which only plugins of this suite do.
        is_ours: bool,
    },
    /// It exists without an execute permission.
    NotExecutable(PathBuf),
    /// It is on a file system with the mount option `noexec`.
    NotExecutableMount(PathBuf),
    /// It answers VERSION neither by a result nor by an error.
    Broken {
        /// The path.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// It does not exist.
    Missing,
}

/// A plugin with its network and file.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The path.
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
        let mut configuration = Self {
            directory: directories.networks.clone(),
            path: directories.plugins.to_string(),
            ..Self::default()
        };
        if !configuration.directory.is_dir() {
            return Ok(configuration);
        }
        let mut paths = runtime::candidates(&configuration.directory)?;
        paths.sort();
        configuration.files = paths.iter().map(|path| File::read(path)).collect();
        for file in &mut configuration.files {
            if let Ok(network) = &mut file.network {
                network.pod_cidrs = pod_cidrs::of(&network.list);
            }
        }
        Ok(configuration)
    }

    /// Finds the plugins, and asks each for its versions.
    pub(super) fn find_programs(&mut self, directories: &Directories) {
        let names: BTreeSet<_> = self.sources().flat_map(Source::programs).collect();
        let programs = names
            .into_iter()
            .map(|name| (name.to_owned(), program(&directories.plugins, name)));
        self.programs = programs.collect();
    }

    /// Returns whether the plugin with this name is one of this suite.
    pub fn has_ours(&self, name: &str) -> bool {
        let program = self.programs.get(name);
        matches!(program, Some(Program::Found { is_ours: true, .. }))
    }

    /// Returns all plugins of all valid networks.
    pub fn sources(&self) -> impl Iterator<Item = Source<'_>> {
        let networks = self.files.iter().filter_map(|file| {
            let network = file.network.as_ref().ok()?;
            Some((file, network))
        });
        networks.flat_map(|(file, network)| {
            let plugins = network.list.plugins.iter();
            plugins.map(move |plugin| Source {
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

    /// Returns whether `source` is in the file that runtimes use.
    pub fn is_chosen(&self, source: Source<'_>) -> bool {
        self.chosen().is_some_and(|it| it.name == source.file.name)
    }

    /// Returns the network with this name.
    pub fn network(&self, name: &str) -> Option<&Network> {
        let mut sources = self.sources().map(|it| it.network);
        sources.find(|it| it.list.name.as_str() == name)
    }

    /// Returns the bridges of all networks, each once.
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
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let directory = path.parent().unwrap_or(Path::new("."));
        let read = fs::read(path).map_err(anyhow::Error::from);
        let whole = read.and_then(|text| {
            let whole = runtime::with_parts(text.clone(), directory)?;
            Ok((text, whole))
        });
        match whole {
            Ok((text, whole)) => {
                let mut file = Self::parse(&name, &whole);
                if let Ok(network) = &mut file.network {
                    network.text = String::from_utf8_lossy(&text).into_owned();
                }
                file
            }
            Err(error) => Self {
                name: name.into_owned(),
                network: Err(super::message(error)),
            },
        }
    }

    /// Parses a file from its name and content.
    pub fn parse(name: &str, bytes: &[u8]) -> Self {
        let parse = || {
            let document = serde_json::from_slice(bytes)?;
            let list = Conflist::parse(bytes.to_owned())?;
            let text = String::from_utf8_lossy(bytes).into_owned();
            Ok(Network {
                list,
                document,
                text,
                pod_cidrs: BTreeMap::new(),
            })
        };
        let network: anyhow::Result<Network> = parse();
        Self {
            name: name.to_owned(),
            network: network.map_err(super::message),
        }
    }

    /// Returns whether the name has the extension of a list.
    pub fn is_list(&self) -> bool {
        Path::new(&self.name)
            .extension()
            .is_some_and(|it| it == "conflist")
    }
}

impl<'a> Source<'a> {
    /// Returns the value of a key of the plugin, in any case.
    pub fn key(self, name: &str) -> Option<&'a Value> {
        json::value(&self.plugin.config, name)
    }

    /// Returns whether the value of a key is `true`.
    pub fn is_set(self, name: &str) -> bool {
        self.key(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Returns the `ipam` section.
    pub fn ipam(self) -> Option<&'a Map<String, Value>> {
        self.plugin.ipam()
    }

    /// Returns the IPAM plugin.
    pub fn ipam_type(self) -> Option<&'a str> {
        self.plugin.ipam_type()
    }

    /// Returns the node's pod CIDRs if the plugin leases from them.
    pub fn pod_cidrs(self) -> &'a [IpNetwork] {
        let file = self.plugin.ipam().and_then(pod_cidrs::file_of);
        let cidrs = file.and_then(|it| self.network.pod_cidrs.get(it));
        cidrs.map_or(&[], Vec::as_slice)
    }

    /// Returns the plugin and its IPAM plugin.
    pub fn programs(self) -> Vec<&'a str> {
        self.plugin.programs().collect()
    }

    /// Returns the bridge of a plugin `bridge`.
    pub fn bridge(self) -> Option<&'a str> {
        bridge_of(self.plugin)
    }

    /// Returns whether the node is the gateway of the pods.
    pub fn is_gateway(self) -> bool {
        self.is_set("isGateway") || self.is_set("isDefaultGateway")
    }

    /// Returns the network's name.
    pub fn name(self) -> &'a str {
        self.network.list.name.as_str()
    }
}

fn asked(search: &SearchPath, path: PathBuf, name: &str) -> Program {
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

fn program(path: &SearchPath, name: &str) -> Program {
    if let Some(file) = path.find(name) {
        return asked(path, file, name);
    }
    let mut files = path.directories().iter().map(|it| it.join(name));
    match files.find(|it| it.is_file()) {
        None => Program::Missing,
        Some(file) if is_on_noexec(&file) => Program::NotExecutableMount(file),
        Some(file) => Program::NotExecutable(file),
    }
}

fn is_on_noexec(file: &Path) -> bool {
    statvfs(file).is_ok_and(|it| it.flags().contains(FsFlags::ST_NOEXEC))
}
