//! Writes man pages of all executables, and cnitool's shell completions, for a release.
//!
//! cargo run --package cnitool --example generate -- DIR
//!
//! The example writes `man/*.8`, and `completions/` for bash, zsh and fish, into DIR. It is not a
//! part of cnitool, because nodes need neither.

use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

use clap_complete::{Shell, generate_to};

mod man;

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
    let mut written = man::pages(&cnitool::command())?;
    written.push(man::of_agent()?);
    for plugin in schema::plugins() {
        written.push(man::of_plugin(plugin)?);
    }
    for (name, page) in written {
        fs::write(pages.join(name), page)?;
    }
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        generate_to(shell, &mut cnitool::command(), "cnitool", &completions)?;
    }
    Ok(())
}
