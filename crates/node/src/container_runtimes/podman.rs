//! podman's configuration (containers.conf(5)), as far as it uses CNI.

use std::path::{Path, PathBuf};

use anyhow::bail;
use cni::files;
use toml::Value;

use super::document::{Document, entries};
use super::lookup::Lookup;

/// The files that show where podman looks for plugins, and whether it uses CNI.
#[derive(Debug)]
pub struct Files<'a> {
    /// The distribution's and the operator's `containers.conf`.
    pub configuration: [&'a Path; 2],
    /// The operator's `containers.conf.d`.
    pub drop_ins: &'a Path,
    /// The backend that podman chose at its first start.
    pub backend: &'a Path,
    /// Possible places of netavark.
    pub netavark: [&'a Path; 4],
}

impl Default for Files<'_> {
    fn default() -> Self {
        let configuration = [
            "/usr/share/containers/containers.conf",
            "/etc/containers/containers.conf",
        ];
        Self {
            configuration: configuration.map(Path::new),
            drop_ins: Path::new("/etc/containers/containers.conf.d"),
            backend: Path::new("/var/lib/containers/storage/defaultNetworkBackend"),
            netavark: [
                "/usr/local/libexec/podman/netavark",
                "/usr/local/lib/podman/netavark",
                "/usr/libexec/podman/netavark",
                "/usr/lib/podman/netavark",
            ]
            .map(Path::new),
        }
    }
}

/// Returns where podman looks for plugins. Returns `None` if there is no configuration file, or if
/// podman uses netavark.
pub fn read(files: &Files<'_>) -> anyhow::Result<Option<Lookup>> {
    let [distribution, operator] = files.configuration;
    let mut lookup = Lookup {
        directories: DIRECTORIES.map(PathBuf::from).to_vec(),
        file: operator.to_owned(),
        key: "cni_plugin_dirs of [network]",
        ..Lookup::default()
    };
    let mut paths = vec![distribution.to_owned(), operator.to_owned()];
    let drop_ins = entries(files.drop_ins)?.into_iter();
    paths.extend(drop_ins.filter(|path| path.extension().is_some_and(|it| it == "conf")));
    let (mut is_configured, mut appends, mut backend) = (false, false, String::new());
    for path in paths {
        let Some(document) = Document::read(&path)? else {
            continue;
        };
        is_configured = true;
        if let Some(named) = document.get(&["network", "network_backend"])? {
            backend = named;
        }
        if let Some(items) = document.get::<Vec<Value>>(&["network", "cni_plugin_dirs"])? {
            let (directories, attribute) = list(&path, items)?;
            appends = attribute.unwrap_or(appends);
            if !appends {
                lookup.directories.clear();
            }
            lookup.directories.extend(directories);
            lookup.file = path;
        }
    }
    let is_used = is_configured && uses_cni(files, &backend)?;
    Ok(is_used.then_some(lookup))
}

/// Returns the directories of a list and the attribute `append`, which the list may have as an
/// item: `["/a", {append=true}]`.
fn list(path: &Path, items: Vec<Value>) -> anyhow::Result<(Vec<PathBuf>, Option<bool>)> {
    let (mut directories, mut appends) = (Vec::new(), None);
    for item in items {
        match (&item, item.get("append").and_then(Value::as_bool)) {
            (Value::String(directory), _) => directories.push(directory.into()),
            (_, Some(attribute)) => appends = Some(attribute),
            _ => bail!(
                "{}: network.cni_plugin_dirs: an item is neither a directory nor append",
                path.display()
            ),
        }
    }
    Ok((directories, appends))
}

/// Returns whether podman uses CNI: by the key `network_backend`, else by its earlier choice, else
/// because netavark is not installed.
fn uses_cni(files: &Files<'_>, backend: &str) -> anyhow::Result<bool> {
    let chosen = files::if_present(files::read(files.backend))?.unwrap_or_default();
    Ok(match (backend.as_bytes(), chosen.as_slice()) {
        (b"", b"") => !files.netavark.iter().any(|it| it.exists()),
        (b"", named) | (named, _) => named == b"cni",
    })
}

/// Where podman looks if no file sets the directories (`DefaultCNIPluginDirs` of containers/common).
const DIRECTORIES: [&str; 5] = [
    "/usr/local/libexec/cni",
    "/usr/libexec/cni",
    "/usr/local/lib/cni",
    "/usr/lib/cni",
    "/opt/cni/bin",
];

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn later_files_replace_or_append() {
        let room = tempfile::tempdir().unwrap();
        let path = |name: &str| room.path().join(name);
        let (usr, etc, drop_ins) = (path("usr"), path("etc"), path("etc.d"));
        let (backend, netavark) = (path("backend"), path("netavark"));
        let files = Files {
            configuration: [&usr, &etc],
            drop_ins: &drop_ins,
            backend: &backend,
            netavark: [&netavark; 4],
        };
        let lookup = || read(&files).unwrap();
        assert!(lookup().is_none());
        fs::write(&usr, "[network]\n").unwrap();
        let found = lookup().unwrap();
        assert_eq!(found.directories, DIRECTORIES.map(Path::new));
        assert_eq!(found.file, etc);
        fs::write(&netavark, "").unwrap();
        assert!(lookup().is_none());
        fs::write(&backend, "cni").unwrap();
        fs::write(&etc, "[network]\ncni_plugin_dirs = ['/a']").unwrap();
        fs::create_dir(&drop_ins).unwrap();
        let more = "[network]\ncni_plugin_dirs = ['/b', {append=true}]";
        fs::write(drop_ins.join("more.conf"), more).unwrap();
        fs::write(drop_ins.join("other"), "[").unwrap();
        let found = lookup().unwrap();
        assert_eq!(found.directories, ["/a", "/b"].map(Path::new));
        assert_eq!(found.file, drop_ins.join("more.conf"));
        fs::write(&usr, "[network]\nnetwork_backend = 'netavark'").unwrap();
        assert!(lookup().is_none());
        fs::write(drop_ins.join("more.conf"), more.replace("'/b'", "1")).unwrap();
        let error = read(&files).unwrap_err().to_string();
        assert!(
            error.contains("more.conf: network.cni_plugin_dirs"),
            "{error}"
        );
    }
}
