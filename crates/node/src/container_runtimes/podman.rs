//! podman's configuration (containers.conf(5)), as far as it uses CNI.

use std::path::{Path, PathBuf};

use anyhow::bail;
use cni::files;
use runtime::paths_in;
use toml::Value;

use super::document::Document;
use super::lookup::Lookup;

/// Returns where podman looks for plugins, by its configuration files below `root`. Returns `None`
/// if there is none, or if podman uses netavark.
pub fn read(root: &Path) -> anyhow::Result<Option<Lookup>> {
    let distribution = root.join("usr/share/containers/containers.conf");
    let operator = root.join("etc/containers/containers.conf");
    let drop_ins = paths_in(&root.join("etc/containers/containers.conf.d"))?.into_iter();
    let mut paths = vec![distribution, operator.clone()];
    paths.extend(drop_ins.filter(|path| path.extension().is_some_and(|it| it == "conf")));
    let mut lookup = Lookup {
        directories: DIRECTORIES.map(PathBuf::from).to_vec(),
        file: operator,
        key: "cni_plugin_dirs of [network]",
        ..Lookup::default()
    };
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
    let is_used = is_configured && uses_cni(root, &backend)?;
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
fn uses_cni(root: &Path, backend: &str) -> anyhow::Result<bool> {
    let chosen = files::read(&root.join("var/lib/containers/storage/defaultNetworkBackend"));
    let chosen = files::if_present(chosen)?.unwrap_or_default();
    Ok(match (backend.as_bytes(), chosen.as_slice()) {
        (b"", b"") => !NETAVARK.iter().any(|it| root.join(it).exists()),
        (b"", named) | (named, _) => named == b"cni",
    })
}

/// Possible places of netavark.
const NETAVARK: [&str; 4] = [
    "usr/local/libexec/podman/netavark",
    "usr/local/lib/podman/netavark",
    "usr/libexec/podman/netavark",
    "usr/lib/podman/netavark",
];

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
        let path = |directory: &str, name: &str| {
            let directory = room.path().join(directory);
            fs::create_dir_all(&directory).unwrap();
            directory.join(name)
        };
        let usr = path("usr/share/containers", "containers.conf");
        let etc = path("etc/containers", "containers.conf");
        let backend = path("var/lib/containers/storage", "defaultNetworkBackend");
        let netavark = path("usr/lib/podman", "netavark");
        let drop_ins = room.path().join("etc/containers/containers.conf.d");
        let lookup = || read(room.path()).unwrap();
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
        let error = read(room.path()).unwrap_err().to_string();
        assert!(
            error.contains("more.conf: network.cni_plugin_dirs"),
            "{error}"
        );
    }
}
