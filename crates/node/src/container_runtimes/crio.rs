//! CRI-O's configuration (crio.conf(5), crio.conf.d(5)).

use std::path::{Path, PathBuf};

use runtime::paths_in;

use super::document::Document;
use super::lookup::{DEFAULT, Lookup};

/// Returns where CRI-O looks for plugins, by its configuration file below `root` and by all files in
/// the directory of further ones, in the order of their names. Returns `None` if there is no file.
pub fn read(root: &Path) -> anyhow::Result<Option<Lookup>> {
    let main = root.join("etc/crio/crio.conf");
    let mut files = vec![main.clone()];
    add_files(&root.join("etc/crio/crio.conf.d"), &mut files)?;
    let mut lookup = Lookup {
        file: main,
        key: "plugin_dirs of [crio.network]",
        ..Lookup::default()
    };
    let mut is_configured = false;
    // The former name of the key: one directory, which comes last.
    let mut last = None;
    for file in files {
        let Some(document) = Document::read(&file)? else {
            continue;
        };
        is_configured = true;
        let key = |name| ["crio", "network", name];
        if let Some(directories) = document.get(&key("plugin_dirs"))? {
            lookup.directories = directories;
            lookup.file = file;
        }
        last = document.get::<PathBuf>(&key("plugin_dir"))?.or(last);
    }
    if lookup.directories.is_empty() {
        lookup.directories.push(DEFAULT.into());
    }
    let last = last.filter(|it| !it.as_os_str().is_empty());
    lookup.directories.extend(last);
    Ok(is_configured.then_some(lookup))
}

/// Appends the files of a directory and of its subdirectories.
fn add_files(directory: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for path in paths_in(directory)? {
        // CRI-O does not follow a link to a directory.
        if path.is_dir() && !path.is_symlink() {
            add_files(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn drop_ins_replace_what_earlier_files_say() {
        let room = tempfile::tempdir().unwrap();
        let etc = room.path().join("etc/crio");
        let (main, drop_ins) = (etc.join("crio.conf"), etc.join("crio.conf.d"));
        let lookup = || read(room.path()).unwrap();
        assert!(lookup().is_none());
        fs::create_dir_all(&drop_ins).unwrap();
        assert!(lookup().is_none());
        fs::write(drop_ins.join("10-crio"), "[crio.image]\n").unwrap();
        assert_eq!(lookup().unwrap().directories, [Path::new(DEFAULT)]);
        let network = "[crio.network]\nplugin_dirs = ['/a', '/b']\nplugin_dir = '/c'";
        fs::write(&main, network).unwrap();
        let found = lookup().unwrap();
        assert_eq!(found.directories, ["/a", "/b", "/c"].map(Path::new));
        assert_eq!(found.file, main);
        fs::create_dir(drop_ins.join("20")).unwrap();
        fs::write(
            drop_ins.join("20/x"),
            "[crio.network]\nplugin_dirs = ['/d']",
        )
        .unwrap();
        let found = lookup().unwrap();
        assert_eq!(found.directories, ["/d", "/c"].map(Path::new));
        assert_eq!(found.file, drop_ins.join("20/x"));
        fs::write(drop_ins.join("30"), "[crio.network]\nplugin_dirs = '/d'").unwrap();
        let error = format!("{:#}", read(room.path()).unwrap_err());
        assert!(error.contains("d/30: crio.network.plugin_dirs"), "{error}");
    }
}
