//! cnitool install: what it reports.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use serde_json::json;
use tests::{EXECUTABLES, Host, Outcome};

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns what a successful installation with these words prints.
#[track_caller]
fn told(host: &Host, words: &[&str]) -> String {
    let install = host.tool().run(&[&["install"], words].concat());
    let outcome = install.argument(host.dir().join("bin")).run();
    assert!(outcome.status.success(), "{outcome:#?}");
    outcome.stderr
}

#[test]
fn other_executables_of_the_same_names_are_named() {
    let host = Host::new();
    host.hide("/etc");
    host.hide("/usr/local");
    let told = || told(&host, &[]);
    let first = told();
    assert!(!first.contains("/usr/local"), "{first}");
    for name in ["bridge", "portmap", "flannel"] {
        put(&Path::new("/usr/local/lib/cni").join(name), "");
    }
    fs::create_dir("/usr/local/libexec").unwrap();
    symlink(host.dir().join("bin"), "/usr/local/libexec/cni").unwrap();
    let crio = "[crio.network]\nplugin_dirs = ['/etc/own']\n";
    put(Path::new("/etc/crio/crio.conf"), crio);
    put(Path::new("/etc/own/host-local"), "");
    let told = told();
    for text in [
        "/usr/local/lib/cni: has bridge, portmap, too;",
        "/etc/own: has host-local, too;",
    ] {
        assert!(told.contains(text), "{text}: {told}");
    }
    assert!(!told.contains("libexec"), "{told}");
}

#[test]
fn configurations_that_win_or_share_the_name_are_named() {
    let host = Host::new();
    let tool = host.tool();
    let source = host.dir().join("10-mine.conflist");
    let list = json!({"cniVersion": "1.0.0", "name": "mine", "plugins": [{"type": "bridge"}]});
    let list = list.to_string();
    fs::write(&source, &list).unwrap();
    tool.write("20-other.conflist", &list.replace("mine", "other"));
    let told = || told(&host, &["--conflist", source.to_str().unwrap()]);
    let first = told();
    assert!(!first.contains("sorts before"), "{first}");
    assert!(!first.contains("network name"), "{first}");
    tool.write("00-first.conflist", &list.replace("mine", "first"));
    tool.write("30-same.conflist", &list);
    let told = told();
    for text in [
        "net.d/00-first.conflist: sorts before 10-mine",
        "net.d/30-same.conflist: has the network name mine",
    ] {
        assert!(told.contains(text), "{text}: {told}");
    }
    for text in ["20-other", "first.conflist: has", "10-mine.conflist: has"] {
        assert!(!told.contains(text), "{text}: {told}");
    }
}

/// The former executables are deleted after the new ones are written.
#[test]
fn a_full_disk_needs_the_room_that_is_named() {
    let host = Host::new();
    let [from, target] = ["from", "bin"].map(|name| host.dir().join(name));
    fs::create_dir(&target).unwrap();
    for name in EXECUTABLES.iter() {
        let answer = if *name == "cnitool" {
            name
        } else {
            "{\"supportedVersions\": []}"
        };
        let script = format!(
            "#!/bin/sh\necho '{answer}'; exit\n{}",
            "#".repeat(1_200_000)
        );
        put(&from.join(name), &script);
    }
    let install = || {
        let words = ["install", "--from", from.to_str().unwrap()];
        host.tool().run(&words).argument(&target).run()
    };
    let on_disk = |mebibytes: u64| {
        host.tmpfs(&target, &format!("size={mebibytes}m"));
        install()
    };
    let needed = room_in(&on_disk(1));
    assert!(needed > 10, "{needed}");
    assert_eq!(room_in(&on_disk(needed - 1)), needed);
    assert!(on_disk(needed).status.success());
    assert_eq!(room_in(&install()), needed, "beside the former executables");
    assert!(on_disk(2 * needed).status.success());
    assert!(install().status.success());
}

/// Returns the room in MiB that a failed installation asks for.
#[track_caller]
fn room_in(outcome: &Outcome) -> u64 {
    let told = &outcome.stderr;
    assert!(
        !outcome.status.success() && told.contains("No space left"),
        "{outcome:#?}"
    );
    let (_, room) = told.split_once("make room for ").unwrap();
    room.split_once(" MiB in ").unwrap().0.parse().unwrap()
}
