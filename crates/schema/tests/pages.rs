//! Compares the pages with the schema and with the code, and follows their links.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test panics where it fails"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Head of a table of keys.
const HEAD: &str = "| key | type | default | meaning | bad input gets |";

/// A row of a table of keys.
#[derive(Debug)]
struct Row {
    r#type: String,
    default: String,
}

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = top().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn page(plugin: &str) -> String {
    read(format!("crates/{plugin}/README.md"))
}

fn schema() -> Value {
    serde_json::from_str(&read("conf-examples/conflist.schema.json")).unwrap()
}

/// Returns the words between backticks.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the rows of the page's tables of keys, by key.
fn table(page: &str) -> BTreeMap<String, Row> {
    let tables = page.split(HEAD).skip(1);
    let rows = tables.flat_map(|it| it.lines().skip(2).take_while(|line| line.starts_with('|')));
    let mut table = BTreeMap::new();
    for line in rows {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        assert_eq!(cells.len(), 5, "{line}");
        for key in words(cells[0]) {
            let (r#type, default) = (cells[1].to_owned(), cells[2].to_owned());
            let before = table.insert(key.to_owned(), Row { r#type, default });
            assert!(before.is_none(), "{key} is there twice");
        }
    }
    table
}

/// Returns the schema of each key, and whether the key is required, by the path of the key. Each
/// path begins with `parent`.
fn keys(parent: &str, schema: &Value) -> BTreeMap<String, (Value, bool)> {
    let mut found = BTreeMap::new();
    for (key, of_key) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{parent}{key}");
        let (mut inner, mut below) = (of_key, path.clone());
        while inner["items"].is_object() {
            inner = &inner["items"];
            below.push_str("[]");
        }
        let required = schema["required"].as_array().into_iter().flatten();
        let is_required = required.into_iter().any(|it| it == key);
        found.insert(path, (of_key.clone(), is_required));
        found.extend(keys(&format!("{below}."), inner));
    }
    found
}

/// Returns the keys that a plugin's page describes: all but those of every plugin, and of each
/// plugin that calls an IPAM plugin.
fn own_keys(plugin: &str) -> BTreeMap<String, (Value, bool)> {
    let mut own = keys("", &schema()["$defs"][plugin]);
    let mut described = common_keys();
    if own.contains_key("ipamTimeout") {
        described.extend(delegation_keys());
    }
    own.retain(|key, _| !described.contains_key(key));
    own
}

/// Returns the keys of each plugin that calls an IPAM plugin, without `ipam`.
fn delegation_keys() -> BTreeMap<String, (Value, bool)> {
    let mut keys = keys("", &schema()["$defs"]["bridge"]);
    keys.retain(|key, _| ["ipamTimeout", "dns"].contains(&key.split('.').next().unwrap()));
    keys
}

fn common_keys() -> BTreeMap<String, (Value, bool)> {
    keys("", &schema()["$defs"]["loopback"])
}

/// Compares a row with the schema of its key.
fn expect_same(key: &str, row: &Row, (schema, is_required): &(Value, bool)) {
    let words: Vec<_> = words(&row.r#type).collect();
    let stated = match row.r#type.split([',', ' ']).next().unwrap() {
        "boolean" => "boolean",
        "list" => "array",
        "object" => "object",
        "bytes" | "bits" | "bit/s" | "number" => "integer",
        range if range.starts_with(|it: char| it.is_ascii_digit()) => "integer",
        word if word.starts_with('`') => "enum",
        _ => "string",
    };
    let choices = schema["oneOf"].as_array().or(schema["enum"].as_array());
    let choices = choices.map(|all| all.iter().map(|it| it.get("const").unwrap_or(it)));
    let specified = match (&choices, schema["anyOf"][0]["type"].as_str()) {
        (Some(_), _) => "enum",
        (None, Some(of_each)) => of_each,
        (None, None) => schema["type"].as_str().unwrap(),
    };
    assert_eq!(stated, specified, "type of {key}");
    if let Some(choices) = choices {
        let choices: Vec<_> = choices.map(|it| it.as_str().unwrap()).collect();
        assert_eq!(words, choices, "{key}");
    }
    let default = row.default.trim_start_matches('`');
    match &schema["default"] {
        Value::Null => assert!(default == row.default, "{key} has no default in the schema"),
        value => {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            assert!(
                default.starts_with(&text),
                "default of {key} is {text}: {row:?}"
            );
        }
    }
    assert_eq!(row.default == "required", *is_required, "{key}");
}

fn expect_same_keys(
    name: &str,
    table: &BTreeMap<String, Row>,
    keys: &BTreeMap<String, (Value, bool)>,
) {
    let listed: BTreeSet<_> = table.keys().collect();
    let known: BTreeSet<_> = keys.keys().collect();
    assert_eq!(listed, known, "{name}: in the table, and in the schema");
    for (key, row) in table {
        expect_same(key, row, &keys[key]);
    }
}

#[test]
fn tables_of_keys_are_those_of_the_schema() {
    for plugin in schema::plugins() {
        expect_same_keys(plugin, &table(&page(plugin)), &own_keys(plugin));
    }
    let mut common = common_keys();
    common.extend(delegation_keys());
    // The key `type` is required in every plugin.
    common.get_mut("type").unwrap().1 = true;
    let page = "crates/every-plugin.md";
    expect_same_keys(page, &table(&read(page)), &common);
}

#[test]
fn every_page_has_the_same_parts() {
    for plugin in schema::plugins() {
        let page = page(plugin);
        let parts = [
            "When to use it",
            "Example",
            "Configuration reference",
            "Supported arguments",
            "Files",
            "Known limits",
        ];
        let found = page.lines().filter_map(|line| line.strip_prefix("## "));
        let found: Vec<_> = found.filter(|part| !part.starts_with("How ")).collect();
        assert_eq!(found, parts, "{plugin}");
    }
}

#[test]
fn examples_of_the_pages_are_valid() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    for plugin in schema::plugins() {
        let page = page(plugin);
        let examples: Vec<_> = page.split("```json\n").skip(1).collect();
        assert!(!examples.is_empty(), "{plugin}");
        for example in examples {
            let mut example: Value =
                serde_json::from_str(example.split("```").next().unwrap()).unwrap();
            if example["plugins"].is_null() {
                let keys = example.as_object_mut().unwrap();
                keys.retain(|key, _| key != "name" && key != "cniVersion");
                example = json!({"cniVersion": "1.1.0", "name": "pods", "plugins": [example]});
            }
            if let Err(error) = validator.validate(&example) {
                panic!("{plugin}: {error}");
            }
        }
    }
}

/// Returns all pages, as paths from the top of the source tree.
fn pages() -> Vec<PathBuf> {
    let mut directories = ["", "conf-examples", "tests", "crates"]
        .map(PathBuf::from)
        .to_vec();
    for entry in fs::read_dir(top().join("crates")).unwrap() {
        let path = PathBuf::from("crates").join(entry.unwrap().file_name());
        if top().join(&path).is_dir() {
            directories.push(path);
        }
    }
    let of_directory = |directory: &PathBuf| {
        let entries = fs::read_dir(top().join(directory)).unwrap();
        let paths = entries.map(|entry| directory.join(entry.unwrap().file_name()));
        let pages = paths.filter(|path| path.extension().is_some_and(|it| it == "md"));
        pages.collect::<Vec<_>>()
    };
    directories.iter().flat_map(of_directory).collect()
}

/// Returns the anchor that GitHub derives from a headline.
fn anchor(headline: &str) -> String {
    let kept = headline.to_lowercase().replace(' ', "-");
    kept.chars()
        .filter(|it| it.is_alphanumeric() || "-_".contains(*it))
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let pages = pages();
    assert!(pages.len() > 15, "{pages:?}");
    let mut count = 0;
    for page in pages {
        let text = read(&page);
        for link in text.split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            if link.starts_with("https://") {
                continue;
            }
            count += 1;
            let (file, headline) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            assert!(top().join(&target).exists(), "{}: {link}", page.display());
            if !headline.is_empty() {
                let target = read(&target);
                let headlines = target.lines().filter(|line| line.starts_with('#'));
                let mut anchors = headlines.map(|line| anchor(line.trim_start_matches(['#', ' '])));
                assert!(
                    anchors.any(|it| it == headline),
                    "{}: {link}",
                    page.display()
                );
            }
        }
    }
    assert!(count > 20);
}

#[test]
fn no_empty_line_ends_a_table() {
    for page in pages() {
        let text = read(&page);
        let lines: Vec<_> = text.lines().collect();
        for four in lines.windows(4) {
            let is_row = |line: &str| line.starts_with('|');
            let is_broken = is_row(four[0]) && four[1].is_empty() && is_row(four[2]);
            let is_head = four[3].starts_with("|---");
            assert!(!is_broken || is_head, "{}: {}", page.display(), four[2]);
        }
    }
}
