//! CRI-O's configuration (crio.conf(5), crio.conf.d(5)).

use std::path::{Path, PathBuf};

use super::document::{Document, entries};
use super::lookup::{DEFAULT, Lookup};

/// Returns where CRI-O looks for plugins, by the file `main` and by all files below `drop_ins`, in
/// the order of their names. Returns `None` if there is no file.
pub fn read(main: &Path, drop_ins: &Path) -> anyhow::Result<Option<Lookup>> {
    let mut lookup = Lookup {
        file: main.to_owned(),
        key: "plugin_dirs of [crio.network]",
        ..Lookup::default()
    };
    let mut files = vec![main.to_owned()];
    add_files(drop_ins, &mut files)?;
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
    for path in entries(directory)? {
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
        let (main, drop_ins) = (room.path().join("crio.conf"), room.path().join("d"));
        let lookup = || read(&main, &drop_ins).unwrap();
        assert!(lookup().is_none());
        fs::create_dir(&drop_ins).unwrap();
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
        let error = format!("{:#}", read(&main, &drop_ins).unwrap_err());
        assert!(error.contains("d/30: crio.network.plugin_dirs"), "{error}");
    }
}
