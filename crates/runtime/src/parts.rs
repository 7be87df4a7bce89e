//! Plugins of a list that stand in a directory of its name, as libcni 1.3 and later read them.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cni::{NetworkName, json};
use serde_json::{Map, Value, json};

use crate::conflist::{candidates, switch};

/// The list in `bytes` with the plugins of `directory/NAME/*.conf` behind its own, as libcni 1.3 reads one that does not
/// set `loadOnlyInlinedPlugins`, which the answer sets; anything else as it is.
///
/// # Errors
/// A file in that directory cannot be read, or is no JSON.
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
    list.retain(|key, _| {
        !["plugins", INLINED]
            .iter()
            .any(|it| key.eq_ignore_ascii_case(it))
    });
    list.insert("plugins".to_owned(), own.into_iter().chain(parts).collect());
    list.insert(INLINED.to_owned(), json!(true));
    Ok(serde_json::to_vec(&list)?)
}

/// What the files of `directory` hold, by name.
fn parts(directory: &Path) -> anyhow::Result<Vec<Value>> {
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let mut paths = candidates(directory)?;
    paths.retain(|path| path.extension().is_some_and(|it| it == "conf"));
    let part = |path: &PathBuf| {
        let bytes = std::fs::read(path)?;
        anyhow::Ok(serde_json::from_slice(&bytes)?)
    };
    let parts = paths.iter();
    let parts = parts.map(|path| part(path).with_context(|| path.display().to_string()));
    parts.collect()
}

const INLINED: &str = "loadOnlyInlinedPlugins";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conflist::Conflist;

    #[test]
    fn plugins_of_the_directory_of_a_list_come_after_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let parts = directory.path().join("pods");
        std::fs::create_dir(&parts).unwrap();
        for (file, text) in [
            ("20-c.conf", r#"{"type": "c"}"#),
            ("10-b.conf", r#"{"type": "b"}"#),
            ("30-d.json", "{"),
        ] {
            std::fs::write(parts.join(file), text).unwrap();
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
        std::fs::write(parts.join("10-b.conf"), "{").unwrap();
        let broken = with_parts(br#"{"name": "pods"}"#.to_vec(), directory.path());
        assert!(format!("{:#}", broken.unwrap_err()).contains("10-b.conf"));
    }
}
