//! containerd's configuration (containerd-config.toml(5)), of its versions 1 and 2.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use glob::{Pattern, glob};
use itertools::Itertools as _;

use super::document::Document;
use super::lookup::{DEFAULT, Lookup};
use crate::occupied::RUNTIME_SOCKETS;
use crate::program::output_of;

/// Returns where containerd looks for plugins, by its configuration file below `root` and the files
/// that it imports. Returns `None` if the file does not exist, or turns the CRI plugin off:
/// containerd then attaches nothing.
pub fn read(root: &Path) -> anyhow::Result<Option<Lookup>> {
    let main = &root.join("etc/containerd/config.toml");
    let mut merged = Merged::default();
    let mut pending = VecDeque::from([main.to_owned()]);
    let mut loaded = BTreeSet::new();
    while let Some(path) = pending.pop_front() {
        if !loaded.insert(path.clone()) {
            continue;
        }
        let Some(document) = Document::read(&path)? else {
            ensure!(path == *main, "{} is imported and absent", path.display());
            return Ok(None);
        };
        merged.merge(&document)?;
        let imports = document.get::<Vec<String>>(&["imports"])?;
        for item in imports.unwrap_or_default() {
            pending.extend(imported(&path, &item)?);
        }
    }
    Ok(merged.lookup(main))
}

/// What the files say together. A later file replaces the values of an earlier one. containerd 1
/// replaces the whole section, so it uses the default if the later file has the section without the
/// key.
#[derive(Debug, Default)]
struct Merged {
    directory: Option<String>,
    directories: Vec<String>,
    file: Option<PathBuf>,
    key: Option<&'static str>,
    is_disabled: bool,
}

impl Merged {
    fn merge(&mut self, document: &Document) -> anyhow::Result<()> {
        let version = document.get::<i64>(&["version"])?.unwrap_or(1);
        let (section, key) = match version {
            ..=1 => ("cri", "bin_dir of [plugins.cri.cni]"),
            2 => (
                GRPC,
                "bin_dir of [plugins.\"io.containerd.grpc.v1.cri\".cni]",
            ),
            _ => (
                RUNTIME,
                "bin_dirs of [plugins.'io.containerd.cri.v1.runtime'.cni]",
            ),
        };
        self.key.get_or_insert(key);
        let disabled = document.get::<Vec<String>>(&["disabled_plugins"])?;
        let mut disabled = disabled.iter().flatten();
        self.is_disabled |= disabled.any(|it| ["cri", GRPC, RUNTIME].contains(&it.as_str()));
        let cni = ["plugins", section, "cni"];
        let directory: Option<String> = document.get(&[&cni[..], &["bin_dir"]].concat())?;
        let directory = directory.filter(|it| !it.is_empty());
        let directories: Option<Vec<_>> = document.get(&[&cni[..], &["bin_dirs"]].concat())?;
        let directories = directories.filter(|it| !it.is_empty());
        if directory.is_some() || directories.is_some() {
            self.file = Some(document.path.clone());
            self.key = Some(key);
        }
        self.directory = directory.or(self.directory.take());
        self.directories = directories.unwrap_or_else(|| std::mem::take(&mut self.directories));
        Ok(())
    }

    /// Returns `None` if the CRI plugin is off. containerd refuses `bin_dir` beside `bin_dirs`
    /// unless the latter is the default.
    fn lookup(self, main: &Path) -> Option<Lookup> {
        let mut directories = self.directories;
        if directories.is_empty() || directories == [DEFAULT] {
            directories = vec![self.directory.unwrap_or_else(|| DEFAULT.to_owned())];
        }
        (!self.is_disabled).then(|| Lookup {
            directories: directories.into_iter().map(PathBuf::from).collect(),
            file: self.file.unwrap_or_else(|| main.to_owned()),
            key: self.key.unwrap_or_default(),
            ..Lookup::default()
        })
    }
}

/// Returns the files that an item of `imports` in the file `parent` names. A relative path starts
/// at the directory of `parent`.
fn imported(parent: &Path, item: &str) -> anyhow::Result<Vec<PathBuf>> {
    let directory = parent.parent().unwrap_or(parent);
    if !item.contains('*') {
        return Ok(vec![directory.join(item)]);
    }
    if item.contains(['?', '[', '\\']) {
        bail!("{}: cannot read the pattern {item}", parent.display());
    }
    let directory = PathBuf::from(Pattern::escape(&directory.to_string_lossy()));
    // containerd knows no recursive pattern: `**` means `*`.
    let pattern = directory.join(item.replace("**", "*"));
    let mut found: Vec<_> = glob(&pattern.to_string_lossy())?.try_collect()?;
    found.retain(|it| it.exists());
    Ok(found)
}

/// Returns the version that `containerd --version` prints. Returns `None` if containerd does not run
/// or does not answer, or if CRI-O runs: then CRI-O may attach the pods.
pub fn version() -> Option<String> {
    let [containerd, cri_o] = RUNTIME_SOCKETS.map(|it| Path::new(it).exists());
    if !containerd || cri_o {
        return None;
    }
    let printed = output_of(&["containerd", "--version"], &[]).ok()??;
    let printed = String::from_utf8_lossy(&printed);
    // containerd github.com/containerd/containerd/v2 v2.0.0 207ad711eabd
    let version = printed.split_whitespace().nth(2)?;
    Some(version.trim_start_matches('v').to_owned())
}

/// The CRI plugin of containerd 1.
const GRPC: &str = "io.containerd.grpc.v1.cri";
/// The part of the CRI plugin that calls plugins, of containerd 2.
const RUNTIME: &str = "io.containerd.cri.v1.runtime";

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the directories and the file that sets them, for a main file and others in `conf.d`.
    fn directories(main: &str, others: &[(&str, &str)]) -> Option<(Vec<PathBuf>, String)> {
        let room = tempfile::tempdir().unwrap();
        let etc = room.path().join("etc/containerd");
        fs::create_dir_all(etc.join("conf.d")).unwrap();
        fs::write(etc.join("config.toml"), main).unwrap();
        for (name, text) in others {
            fs::write(etc.join("conf.d").join(name), text).unwrap();
        }
        let lookup = read(room.path()).unwrap()?;
        let file = lookup.file.strip_prefix(etc).unwrap();
        Some((lookup.directories, file.display().to_string()))
    }

    #[test]
    fn each_version_has_its_section() {
        let of = |version: &str, section: &str, key: &str| {
            let main = format!("{version}\n[plugins.'{section}'.cni]\n{key}\n");
            directories(&main, &[]).unwrap().0
        };
        let one = r#"bin_dir = "/a""#;
        assert_eq!(of("", "cri", one), [Path::new("/a")]);
        assert_eq!(of("version = 2", GRPC, one), [Path::new("/a")]);
        assert_eq!(of("version = 3", RUNTIME, one), [Path::new("/a")]);
        let two = "bin_dir = ''\nbin_dirs = ['/a', '/b']";
        let both = ["/a", "/b"].map(Path::new);
        assert_eq!(of("version = 3", RUNTIME, two), both);
        // containerd 2 ignores the section of containerd 1 in a file of version 3.
        assert_eq!(of("version = 3", GRPC, one), [Path::new(DEFAULT)]);
        assert_eq!(of("version = 2", RUNTIME, one), [Path::new(DEFAULT)]);
    }

    #[test]
    fn imported_files_replace_what_earlier_ones_say() {
        let section = format!("version = 3\n[plugins.'{RUNTIME}'.cni]\n");
        let main = format!("imports = ['conf.d/*.toml', 'config.toml']\n{section}bin_dir = '/a'");
        let (found, file) = directories(&main, &[]).unwrap();
        assert_eq!((&*found, &*file), (&["/a".into()][..], "config.toml"));
        let others = [
            ("10-a.toml", &*format!("{section}bin_dirs = ['/b']")),
            ("20-b.toml", &*format!("{section}bin_dirs = ['/c', '/d']")),
            ("30-c.tom", "["),
        ];
        let (found, file) = directories(&main, &others).unwrap();
        assert_eq!(found, ["/c", "/d"].map(Path::new));
        assert_eq!(file, "conf.d/20-b.toml");
    }

    #[test]
    fn without_its_cri_plugin_containerd_attaches_nothing() {
        assert_eq!(directories("disabled_plugins = ['cri']", &[]), None);
        let two = format!("version = 2\ndisabled_plugins = ['{GRPC}']");
        assert_eq!(directories(&two, &[]), None);
        assert!(directories("disabled_plugins = []", &[]).is_some());
    }

    #[test]
    fn an_absent_import_and_a_wrong_type_are_errors() {
        let room = tempfile::tempdir().unwrap();
        assert!(read(room.path()).unwrap().is_none());
        let etc = room.path().join("etc/containerd");
        fs::create_dir_all(&etc).unwrap();
        for text in [
            "imports = ['more.toml']",
            "[plugins.cri.cni]\nbin_dir = 1",
            "imports = ['[a]*']",
            "version = ",
        ] {
            fs::write(etc.join("config.toml"), text).unwrap();
            let error = format!("{:#}", read(room.path()).unwrap_err());
            assert!(error.contains(etc.to_str().unwrap()), "{error}");
        }
    }
}
