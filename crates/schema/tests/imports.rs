//! Checks that no file of a crate imports, directly or through other files, a file that imports it.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Path of a module within its crate: `log::line` is `["log", "line"]`.
type Module = Vec<String>;

/// The modules that each module imports.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// The modules of a crate, and the modules from which its root re-exports items.
#[derive(Default)]
struct Known {
    modules: BTreeSet<Module>,
    exports: BTreeMap<String, Module>,
}

#[test]
fn no_file_imports_a_file_that_needs_it() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut circles = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        let source = entry.unwrap().path().join("src");
        let name = source.parent().and_then(Path::file_name).unwrap();
        let name = name.to_string_lossy().into_owned();
        if source.is_dir() {
            let imports = imports(&source);
            circles.extend(on_circles(&imports).map(|it| format!("{name}: {}", it.join("::"))));
        }
    }
    assert!(circles.is_empty(), "circles pass through {circles:#?}");
}

#[test]
fn circle_is_found_and_a_chain_is_none() {
    let all = ["a", "b", "b::c"].map(module);
    let known = Known {
        modules: all.clone().into(),
        exports: [("F".to_owned(), module("b"))].into(),
    };
    let imports = |texts: [&str; 3]| -> Imports {
        let found = all.iter().zip(texts);
        let found = found.map(|(it, text)| (it.clone(), imported(it, text, &known)));
        found.collect()
    };
    let chain = imports(["use crate::b::{C, c::d};", "use c::E;", "fn f() {}"]);
    assert_eq!(on_circles(&chain).count(), 0);
    let circle = imports([
        "use crate::{F};",
        "use c::E;",
        "fn f() { super::super::a::g() }",
    ]);
    assert_eq!(on_circles(&circle).count(), 3);
    let tests = imports([
        "use crate::b;",
        "#[cfg(test)]\nmod tests {\n use crate::a;\n}",
        "",
    ]);
    assert_eq!(on_circles(&tests).count(), 0);
}

fn module(path: &str) -> Module {
    path.split("::").map(str::to_owned).collect()
}

/// Returns the modules that import themselves through other modules.
fn on_circles(imports: &Imports) -> impl Iterator<Item = &Module> {
    imports.keys().filter(|start| {
        let mut needed = BTreeSet::new();
        let mut left = vec![*start];
        while let Some(next) = left.pop() {
            let found = imports.get(next).into_iter().flatten();
            left.extend(found.filter(|it| needed.insert(*it)));
        }
        needed.contains(start)
    })
}

/// Returns the imports of the files below `source`. Leaves out the crate's root and tests, which
/// may import anything.
fn imports(source: &Path) -> Imports {
    let files = files(source);
    let mut known = Known {
        modules: files.keys().cloned().collect(),
        ..Known::default()
    };
    let root = fs::read_to_string(source.join("lib.rs")).unwrap_or_default();
    let exports = paths(&root).into_iter().filter_map(|path| {
        let name = path.last()?.clone();
        Some((name, known.module_of(&Module::new(), path)?))
    });
    known.exports = exports.collect();
    let read = |(module, file): (&Module, &PathBuf)| {
        let text = fs::read_to_string(file).unwrap();
        (module.clone(), imported(module, &text, &known))
    };
    files.iter().map(read).collect()
}

/// Returns the files below `source` by module, except those of the root and of tests.
fn files(source: &Path) -> BTreeMap<Module, PathBuf> {
    let mut files = BTreeMap::new();
    let mut folders = vec![source.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(source).unwrap().with_extension("");
            let parts = name.iter().map(|it| it.to_string_lossy().into_owned());
            let mut module: Module = parts.collect();
            module.pop_if(|it| ["mod", "lib", "main"].contains(&it.as_str()));
            let is_test = module
                .last()
                .is_some_and(|it| it == "tests" || it == "properties");
            if !module.is_empty() && !is_test {
                files.insert(module, path);
            }
        }
    }
    files
}

/// Returns the modules whose items are named by paths in `text`, the source of `module`.
fn imported(module: &Module, text: &str, known: &Known) -> BTreeSet<Module> {
    let paths = paths(text).into_iter();
    let found = paths.filter_map(|path| known.module_of(module, path));
    found.filter(|it| it != module).collect()
}

impl Known {
    /// Returns the module whose item is named by `path` in the source of `module`.
    fn module_of(&self, module: &Module, path: Vec<String>) -> Option<Module> {
        let path = absolute(module, path, &self.modules);
        let prefixes = (1..=path.len()).rev().filter_map(|it| path.get(..it));
        let mut prefixes = prefixes.filter(|it| self.modules.contains(*it));
        let found = prefixes.next().map(<[String]>::to_vec);
        found.or_else(|| self.exports.get(path.first()?).cloned())
    }
}

/// Converts `path` in the source of `module` to a path from the crate's root. Returns an empty path
/// if it leads to another crate.
fn absolute(module: &Module, path: Vec<String>, modules: &BTreeSet<Module>) -> Module {
    let (mut place, mut path) = (module.clone(), path.into_iter().peekable());
    match path.peek().map(String::as_str) {
        Some("crate") => place.clear(),
        Some(first) if !["self", "super"].contains(&first) => {
            place.push(first.to_owned());
            if !modules.contains(&place) {
                return Module::new();
            }
            place.pop();
        }
        _ => {}
    }
    for part in path {
        match part.as_str() {
            "crate" | "self" => {}
            "super" => drop(place.pop()),
            _ => place.push(part),
        }
    }
    place
}

/// Returns the paths in `text` that have at least two parts. Expands `a::{b, c}` to `a::b` and
/// `a::c`.
fn paths(text: &str) -> Vec<Vec<String>> {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let (mut found, mut prefixes) = (Vec::new(), vec![Vec::new()]);
    let (mut path, mut continues) = (Vec::new(), false);
    for token in tokens(text) {
        match token.as_str() {
            "::" => continues = true,
            "{" => {
                prefixes.push(if continues { path.clone() } else { Vec::new() });
                (path, continues) = (Vec::new(), false);
            }
            "}" => {
                prefixes.pop();
                found.push(std::mem::take(&mut path));
            }
            word if word.chars().all(is_word) => {
                if !std::mem::take(&mut continues) {
                    let prefix = prefixes.last().cloned().unwrap_or_default();
                    found.push(std::mem::replace(&mut path, prefix));
                }
                path.push(word.to_owned());
            }
            _ => found.push(std::mem::take(&mut path)),
        }
    }
    found.push(path);
    found.retain(|path| path.len() > 1);
    found
}

/// Returns the words and marks of `text`, without comments. A double colon is one mark.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = vec![String::new()];
    for letter in text
        .lines()
        .flat_map(|line| line.split("//").next().unwrap().chars().chain([' ']))
    {
        let last = tokens.last_mut().unwrap();
        let goes_on = match last.chars().last() {
            Some(before) if is_word(before) => is_word(letter),
            Some(':') => letter == ':' && last.len() == 1,
            Some(_) => false,
            None => true,
        };
        if goes_on {
            last.push(letter);
        } else {
            tokens.push(letter.to_string());
        }
    }
    tokens.retain(|it| it != " ");
    tokens
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}
