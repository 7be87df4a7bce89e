//! Environment variables of cnitool. An empty variable counts as absent.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cni::{Attachment, InterfaceName, NetworkName, SearchPath};
use runtime::{Arguments, Cache, Directories, Sandbox};
use serde_json::{Map, Value};

use crate::sandbox;

#[derive(Debug)]
pub struct Settings {
    /// Directories from `NETCONFPATH`, `CNI_PATH` and `CNI_CACHE_DIR`, or the default ones.
    pub directories: Directories,
    /// The interface in the sandbox (`CNI_IFNAME`).
    pub interface: InterfaceName,
    /// Arguments for the plugins (`CNI_ARGS`); `None` if the variable is not set.
    pub cni_args: Option<Vec<[String; 2]>>,
    /// Values of capabilities (`CAP_ARGS`); `None` if the variable is not set.
    pub capability_args: Option<Map<String, Value>>,
}

impl Settings {
    /// Reads the settings. `lookup` returns the value of an environment variable.
    pub fn read(lookup: impl Fn(&str) -> Option<OsString>) -> anyhow::Result<Self> {
        let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let path =
            |name: &str, or: &str| set(name).map_or_else(|| PathBuf::from(or), PathBuf::from);
        let text = |name: &'static str| {
            let text = set(name).map(OsString::into_string).transpose();
            text.map_err(|value| anyhow::anyhow!("{name} {} is not UTF-8", value.display()))
        };
        let cni_args = text("CNI_ARGS")?.map(|text| Arguments::pairs(&text).context("CNI_ARGS"));
        let capability_args = text("CAP_ARGS")?
            .map(|text| serde_json::from_str(&text).context("CAP_ARGS: expected a JSON object"));
        let plugins = text("CNI_PATH")?.unwrap_or_else(|| "/opt/cni/bin".into());
        let interface = text("CNI_IFNAME")?.unwrap_or_else(|| "eth0".into());
        let cache = set("CNI_CACHE_DIR").map_or_else(Cache::default, |directories| {
            let directories = env::split_paths(&directories);
            Cache(directories.filter(|it| *it != Path::new("")).collect())
        });
        Ok(Self {
            directories: Directories {
                networks: path("NETCONFPATH", "/etc/cni/net.d"),
                plugins: SearchPath::parse(&plugins),
                cache,
            },
            interface: interface.parse().context("CNI_IFNAME")?,
            cni_args: cni_args.transpose()?,
            capability_args: capability_args.transpose()?,
        })
    }

    /// Returns the sandbox at the path `netns` with the interface that is to be in `network`, and
    /// without arguments. Its container ID depends on the path only.
    ///
    /// # Errors
    /// The path is empty, or relative to a working directory that cannot be found.
    pub fn sandbox(&self, network: &NetworkName, netns: &Path) -> anyhow::Result<Sandbox> {
        let netns = sandbox::absolute(netns)?;
        Ok(Sandbox {
            attachment: Attachment {
                network: network.clone(),
                container: sandbox::container_id(&netns)?,
                interface: self.interface.clone(),
            },
            netns,
            arguments: Arguments::default(),
        })
    }

    /// Returns the cached sandbox in `network` that `wanted` means: the path of its namespace, or the
    /// container's ID or first characters of it. What exists as a file is a path.
    ///
    /// # Errors
    /// The cache cannot be read, the characters begin several IDs, or the container is cached only with
    /// other interfaces.
    pub fn attached(
        &self,
        network: &NetworkName,
        wanted: &Path,
    ) -> anyhow::Result<Option<Sandbox>> {
        let cache = &self.directories.cache;
        let by_path = cache.find(&self.sandbox(network, wanted)?)?;
        let Some(id) = sandbox::named(wanted).filter(|_| by_path.is_none()) else {
            return Ok(by_path);
        };
        let mut named = cache.of_network(network)?;
        let is_whole = named.iter().any(|(it, _)| it.container == id);
        let is_prefix = |whole: &str| id.as_str().len() >= SHORT && whole.starts_with(id.as_str());
        named.retain(|(it, _)| it.container == id || !is_whole && is_prefix(it.container.as_str()));
        let (own, other): (Vec<_>, Vec<_>) = named
            .into_iter()
            .partition(|(it, _)| it.interface == self.interface);
        match (own.as_slice(), other.as_slice()) {
            ([(attachment, entry)], _) => Ok(Some(entry.sandbox(attachment))),
            ([], []) => Ok(None),
            ([], [(it, _), ..]) => bail!(
                "{id} has no cached result of {}, but of {}: see --ifname",
                self.interface,
                it.interface
            ),
            (several, _) => bail!(
                "{id} means {} containers of network {network}: give more characters of the ID, which \
                 cnitool ps --json prints",
                several.len()
            ),
        }
    }

    /// Returns the sandbox that `wanted` means if [`Self::attached`] finds none. That of a container
    /// ID has no path.
    ///
    /// # Errors
    /// As [`Self::sandbox`].
    pub fn unattached(&self, network: &NetworkName, wanted: &Path) -> anyhow::Result<Sandbox> {
        let mut sandbox = self.sandbox(network, wanted)?;
        if let Some(container) = sandbox::named(wanted) {
            sandbox.attachment.container = container;
            sandbox.netns = PathBuf::new();
        }
        Ok(sandbox)
    }

    /// Returns the error message for a sandbox that [`Self::attached`] does not find.
    pub fn lacks(&self, network: &NetworkName, wanted: &Path) -> String {
        format!(
            "{} has no cached result of {} on network {network}: see cnitool ps, and set CNI_CACHE_DIR if the \
             runtime has a cache of its own",
            wanted.display(),
            self.interface
        )
    }

    /// Returns the values of `CNI_ARGS` and `CAP_ARGS`. If a variable is not set, the function
    /// takes its value from `cached`, the arguments of an earlier ADD.
    pub fn arguments(&self, cached: Arguments) -> Arguments {
        Arguments {
            cni: self.cni_args.clone().unwrap_or(cached.cni),
            capabilities: self.capability_args.clone().unwrap_or(cached.capabilities),
        }
    }
}

/// Least number of characters that mean a longer container ID, as in `podman ps`. Fewer may also be the
/// name of a namespace that no longer exists.
const SHORT: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> anyhow::Result<Settings> {
        Settings::read(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn empty_variables_count_as_absent() {
        let empty = [
            ("NETCONFPATH", ""),
            ("CNI_PATH", ""),
            ("CNI_ARGS", ""),
            ("CAP_ARGS", ""),
        ];
        let settings = read(&empty).unwrap();
        assert_eq!(
            settings.directories.networks,
            PathBuf::from("/etc/cni/net.d")
        );
        assert_eq!(settings.directories.plugins.to_string(), "/opt/cni/bin");
        assert_eq!(settings.directories.cache.0, Cache::default().0);
        assert_eq!(settings.interface.as_str(), "eth0");
        assert_eq!((settings.cni_args, settings.capability_args), (None, None));
    }

    #[test]
    fn caches_are_separated_by_colons() {
        let settings = read(&[("CNI_CACHE_DIR", "/a::/b")]).unwrap();
        let caches = [PathBuf::from("/a"), PathBuf::from("/b")];
        assert_eq!(settings.directories.cache.0, caches);
    }

    #[test]
    fn cached_arguments_serve_where_the_environment_has_none() {
        let cached = Arguments {
            cni: vec![["IP".into(), "192.0.2.7".into()]],
            capabilities: serde_json::from_str(r#"{"mac": "a"}"#).unwrap(),
        };
        let settings = read(&[("CNI_ARGS", "IP=192.0.2.8")]).unwrap();
        let arguments = settings.arguments(cached.clone());
        assert_eq!(arguments.cni_text(), "IP=192.0.2.8");
        assert_eq!(arguments.capabilities, cached.capabilities);
    }

    #[test]
    fn refusals_name_the_variable() {
        for (name, value) in [
            ("CNI_IFNAME", "a/b"),
            ("CNI_ARGS", "IP"),
            ("CAP_ARGS", "[]"),
            ("CAP_ARGS", "{"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(format!("{error:#}").starts_with(name), "{error:#}");
        }
    }
}
