//! Tests on the real kernel, in namespaces of their own. Need root or `unshare -Urnm`, nft(8) and
//! iptables.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends at the first surprise"
)]

use std::process::Command;

use nft::{Change, Connection, Element, Error, Table, Updated};
use nix::sched::{CloneFlags, unshare};

mod counts;
mod held;
mod limits;
mod maps;
mod releases;
mod required;
mod tables;

/// Moves the test's thread into a new namespace.
fn enter_new_namespace() -> Connection {
    unshare(CloneFlags::CLONE_NEWNET).expect("run as root or under: unshare -Urnm");
    Connection::open().unwrap()
}

/// Adds `elements` to sets of `table`. Creates or repairs the table if necessary. Replaces existing
/// elements with the same keys, of any owner.
fn put(connection: &Connection, table: &Table, elements: &[Element]) -> Result<Updated, Error> {
    connection.update(table, || {
        let there = connection.holders(table, elements)?.into_iter();
        Ok(Change::of(there.flatten().collect(), elements.to_vec()))
    })
}

/// Runs `nft ARGUMENTS`, split at white space.
fn nft(arguments: &str) -> String {
    printed(Command::new("nft").args(arguments.split_whitespace()))
}

/// Runs a line of shell.
fn run(line: &str) -> String {
    printed(Command::new("sh").args(["-c", line]))
}

/// Returns what the command prints. The command must succeed.
fn printed(command: &mut Command) -> String {
    let output = command.output().expect("install nftables and iptables");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}
