//! Reads further plugins of a list from the directory that has the list's name, as libcni 1.3 and
//! later do.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cni::files::{self, if_present};
use cni::{NetworkName, json};
use serde_json::{Map, Value, json};

/// Appends the plugins in `directory/NAME/*.conf` to the list in `bytes`, where NAME is the list's
/// name. Then sets `loadOnlyInlinedPlugins` to `true`, so that a later call does not append the
/// plugins again. Returns `bytes` unchanged if this key already is `true`, if there are no such
/// files, or if `bytes` is not a list.
///
/// # Errors
/// The directory or a file in it cannot be read, a file is not JSON, or `loadOnlyInlinedPlugins` is
/// not a boolean.
pub fn with_parts(bytes: Vec<u8>, directory: &Path) -> anyhow::Result<Vec<u8>> {
    let document: Result<Map<String, Value>, _> = serde_json::from_slice(&bytes);
    let Some(mut list) = document.ok().filter(|it| json::value(it, "type").is_none()) else {
        return Ok(bytes);
    };
    let name = json::value(&list, "name").and_then(Value::as_str);
    let name: Option<NetworkName> = name.and_then(|it| it.parse().ok());
    let is_whole = switch(json::value(&list, INLINED)).context(INLINED)?;
    let parts = match name {
        Some(name) if !is_whole => parts(&directory.join(name.as_str()))?,
        _ => Vec::new(),
    };
    if parts.is_empty() {
        return Ok(bytes);
    }
    let own = json::value(&list, "plugins").cloned().unwrap_or_default();
    let own = own.as_array().cloned().unwrap_or_default();
    for key in ["plugins", INLINED] {
        list.retain(|it, _| !it.eq_ignore_ascii_case(key));
    }
    list.insert("plugins".to_owned(), own.into_iter().chain(parts).collect());
    list.insert(INLINED.to_owned(), json!(true));
    Ok(serde_json::to_vec(&list)?)
}

/// Returns the parsed `*.conf` files of `directory`, sorted by name.
fn parts(directory: &Path) -> anyhow::Result<Vec<Value>> {
    let mut paths = candidates(directory)?;
    paths.retain(|path| path.extension().is_some_and(|it| it == "conf"));
    let part = |path: &PathBuf| {
        let bytes = files::read(path)?;
        anyhow::Ok(serde_json::from_slice(&bytes)?)
    };
    let part = |path| part(path).with_context(|| path.display().to_string());
    paths.iter().map(part).collect()
}

const INLINED: &str = "loadOnlyInlinedPlugins";

/// Returns the files of `directory` that may be configurations: first lists (`*.conflist`), then
/// single plugins (`*.conf`, `*.json`), both sorted by name. Returns an empty list if the directory
/// does not exist.
///
/// # Errors
/// The directory exists and cannot be read.
pub fn candidates(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = paths_in(directory)?;
    let rank = |path: &PathBuf| match path.extension()?.to_str()? {
        "conflist" => Some(0),
        "conf" | "json" => Some(1),
        _ => None,
    };
    paths.retain(|path| rank(path).is_some() && path.is_file());
    paths.sort_by_key(rank);
    Ok(paths)
}

/// Returns the paths in `directory`, sorted; an empty list if the directory does not exist.
///
/// # Errors
/// The directory exists and cannot be read.
pub fn paths_in(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let read = || {
        let entries = if_present(fs::read_dir(directory))?.into_iter().flatten();
        entries.map(|it| Ok(it?.path())).collect()
    };
    let paths: io::Result<Vec<_>> = read();
    let mut paths = paths.with_context(|| format!("read {}", directory.display()))?;
    paths.sort();
    Ok(paths)
}

/// Parses a boolean, which may be written as a string. An absent value is `false`.
pub fn switch(value: Option<&Value>) -> anyhow::Result<bool> {
    match value {
        None => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(Value::String(text)) => Ok(text.to_lowercase().parse()?),
        Some(other) => bail!("expected true or false, found {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conflist::Conflist;

    #[test]
    fn plugins_of_the_directory_of_a_list_come_after_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let parts = directory.path().join("pods");
        fs::create_dir(&parts).unwrap();
        for (file, text) in [
            ("20-c.conf", r#"{"type": "c"}"#),
            ("10-b.conf", r#"{"type": "b"}"#),
            ("30-d.json", "{"),
        ] {
            fs::write(parts.join(file), text).unwrap();
        }
        let programs = |list: &str| {
            let whole = with_parts(list.as_bytes().to_vec(), directory.path()).unwrap();
            let again = with_parts(whole.clone(), directory.path()).unwrap();
            assert_eq!(whole, again, "each part is taken once");
            let list = Conflist::parse(whole).ok()?;
            let plugins = list.plugins.iter().map(|it| it.program.clone());
            Some(plugins.collect::<String>())
        };
        let own = r#""plugins": [{"type": "a"}]"#;
        for (list, expected) in [
            (format!(r#"{{"name": "pods", {own}}}"#), Some("abc")),
            (r#"{"name": "pods"}"#.to_owned(), Some("bc")),
            (format!(r#"{{"name": "other", {own}}}"#), Some("a")),
            (
                format!(r#"{{"name": "pods", "loadOnlyInlinedPlugins": true, {own}}}"#),
                Some("a"),
            ),
            (
                r#"{"name": "pods", "loadOnlyInlinedPlugins": true}"#.to_owned(),
                None,
            ),
            (r#"{"name": "pods", "type": "a"}"#.to_owned(), Some("a")),
        ] {
            assert_eq!(programs(&list).as_deref(), expected, "{list}");
        }
        fs::write(parts.join("10-b.conf"), "{").unwrap();
        let broken = with_parts(br#"{"name": "pods"}"#.to_vec(), directory.path());
        assert!(format!("{:#}", broken.unwrap_err()).contains("10-b.conf"));
    }
}
