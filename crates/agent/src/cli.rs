//! The command line.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser};
use cni::note;
use tokio::runtime::Builder;

use crate::config::Config;
use crate::{capabilities, gc, parts};

/// Keeps a node's network in order while pods run.
#[derive(Debug, Parser)]
#[command(name = "cni-agent", version)]
struct Cli {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/cni/agent.json")]
    config: PathBuf,
    /// Print what a round of garbage collection would remove and keep, and change nothing
    #[arg(long)]
    dry_run: bool,
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
    capabilities::drop_others()?;
    // One thread serves all sockets. Work that blocks runs on threads of its own.
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("start the event loop")?;
    let outcome = if cli.dry_run {
        let lines = gc::dry_run(config.gc.unwrap_or_default(), config.runtime.directories());
        runtime.block_on(lines).and_then(|it| print(&it))
    } else {
        runtime.block_on(parts::run(config))
    };
    // A thread that waits for a plugin does not delay the end of the process.
    runtime.shutdown_background();
    outcome
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    written
        .and_then(|()| stdout.flush())
        .context("write to stdout")
}
