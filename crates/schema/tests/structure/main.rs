//! Checks the structure of the source tree: the direction of dependencies, the places that must know
//! each plugin, and those that must not.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

mod layers;
mod names;
mod plugins;
mod recipe;
mod tree;

use self::tree::Tree;

#[test]
fn crates_use_crates_of_earlier_layers_only() {
    assert_eq!(layers::faults(&Tree::read()), Vec::<String>::new());
    let mut tree = Tree::read();
    for (name, used) in [("netlink", "cni"), ("bridge", "ptp"), ("node", "upkeep")] {
        let manifest = tree
            .0
            .get_mut(&format!("crates/{name}/Cargo.toml"))
            .unwrap();
        *manifest = manifest.replace(
            "[dependencies]\n",
            &format!("[dependencies]\n{used} = {{}}\n"),
        );
        let fault = format!("{name} uses {used}");
        assert!(layers::faults(&tree).contains(&fault), "{fault}");
    }
}

#[test]
fn every_plugin_is_where_it_must_be() {
    assert_eq!(plugins::faults(&Tree::read()), Vec::<String>::new());
}

#[test]
fn tools_name_no_plugin() {
    assert_eq!(names::faults(&Tree::read()), Vec::<String>::new());
}

#[test]
fn names_of_plugins_in_tools_are_found() {
    let whole = Tree::read();
    for (name, line) in [
        ("node/src/lookup.rs", r#"if plugin.program == "bridge" {}"#),
        ("upkeep/src/deletion_check.rs", r#"let [name] = ["ptp"];"#),
        (
            "metrics/src/ports.rs",
            r#"match name { "host-local" | "static" => {} }"#,
        ),
        ("cnitool/src/limit.rs", "let name = bandwidth::PLUGIN.name;"),
        ("agent/src/config.rs", "let name = firewall::FACTS.name;"),
        ("attach/src/lease.rs", r#"const BLIND: &str = "static";"#),
    ] {
        let mut tree = whole.clone();
        let path = format!("crates/{name}");
        let source = tree.0.get_mut(&path).unwrap();
        source.insert_str(0, &format!("{line}\n"));
        assert_eq!(names::faults(&tree), [format!("{path}: {line}")]);
    }
}
