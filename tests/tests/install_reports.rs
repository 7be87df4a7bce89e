//! cnitool install: what it reports.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tests::{EXECUTABLES, Host, Outcome};

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
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
