//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser};
use cni::note;
use tokio::runtime::Builder;

use crate::config::Config;
use crate::parts;

/// Keeps a node's network in order while pods run.
#[derive(Debug, Parser)]
#[command(name = "cni-agent", version)]
struct Cli {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/cni/agent.json")]
    config: PathBuf,
}

/// Returns the command line, for man pages and completions.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the agent until SIGTERM or SIGINT.
pub fn run() -> ExitCode {
    match execute(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(format_args!("cni-agent: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn execute(cli: &Cli) -> anyhow::Result<()> {
    let config = Config::read(&cli.config)?;
    // One thread serves all sockets. Work that blocks runs on threads of its own.
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("start the event loop")?;
    let outcome = runtime.block_on(parts::run(config));
    // A thread that waits for a plugin does not delay the end of the process.
    runtime.shutdown_background();
    outcome
}
