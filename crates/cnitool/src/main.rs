//! Runs a network configuration list against a sandbox, as a runtime does.

mod cache;
mod chain;
mod cli;
mod conflist;
mod install;
mod reload;
mod sandbox;
mod settings;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
