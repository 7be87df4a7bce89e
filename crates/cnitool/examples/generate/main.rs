//! Writes the man pages of cnitool and the completions of shells, as a release brings them along.
//!
//!     cargo run --package cnitool --example generate -- DIR
//!
//! DIR gets `man/*.8`, and `completions/` for bash, zsh and fish. It is no part of cnitool, which would be larger by
//! what nobody calls on a node.

#![expect(dead_code, reason = "of cnitool only the command line is looked at")]

use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

use clap::CommandFactory as _;
use clap_complete::{Shell, generate_to};

#[path = "../../src/cache.rs"]
mod cache;
#[path = "../../src/chain.rs"]
mod chain;
#[path = "../../src/cli.rs"]
mod cli;
#[path = "../../src/conflist.rs"]
mod conflist;
#[path = "../../src/doctor/mod.rs"]
mod doctor;
#[path = "../../src/gc.rs"]
mod gc;
#[path = "../../src/install/mod.rs"]
mod install;
#[path = "../../src/listing.rs"]
mod listing;
mod man;
#[path = "../../src/migrate/mod.rs"]
mod migrate;
#[path = "../../src/node/mod.rs"]
mod node;
#[path = "../../src/parts.rs"]
mod parts;
#[path = "../../src/ps/mod.rs"]
mod ps;
#[path = "../../src/reload.rs"]
mod reload;
#[path = "../../src/sandbox.rs"]
mod sandbox;
#[path = "../../src/settings.rs"]
mod settings;

use cli::Cli;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [directory] = arguments.as_slice() else {
        cni::note("where to? cargo run --package cnitool --example generate -- DIR");
        return ExitCode::FAILURE;
    };
    match generate(Path::new(directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            cni::note(format_args!("{}: {error}", Path::new(directory).display()));
            ExitCode::FAILURE
        }
    }
}

fn generate(directory: &Path) -> io::Result<()> {
    let (pages, completions) = (directory.join("man"), directory.join("completions"));
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    for (name, page) in man::pages(&Cli::command())? {
        fs::write(pages.join(name), page)?;
    }
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        generate_to(shell, &mut Cli::command(), "cnitool", &completions)?;
    }
    Ok(())
}
