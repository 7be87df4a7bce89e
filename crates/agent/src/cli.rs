//! The command line.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser};
use cni::{note, page};

use crate::config::Config;
use crate::ending::{event_loop, until_signal};
use crate::log::Log;
use crate::repair::Guard;
use crate::{capabilities, cluster, gc, parts};

/// Keeps a node's network in order while pods run.
#[derive(Debug, Parser)]
#[command(name = "cni-agent", version, after_long_help = keys())]
struct Cli {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = "/etc/cni/agent.json")]
    config: PathBuf,
    /// Print what a round of garbage collection would remove and keep, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Remove the cluster network from this node: routes, tunnels, rules, conflist, saved nodes and
    /// WireGuard keys. Stop the agent first. Pods keep their own interfaces, and reach no other node
    #[arg(long, conflicts_with = "dry_run")]
    cleanup: bool,
    /// Replace the WireGuard key of this node. The running agent announces the new key, and uses it once
    /// the API server has told the other nodes
    #[arg(long, conflicts_with_all = ["dry_run", "cleanup"])]
    rotate_key: bool,
}

/// Returns the keys of the configuration file, from the reference page.
fn keys() -> String {
    let keys = page::keys(include_str!("../REFERENCE.md"), "Keys");
    format!("Keys of the configuration file:\n\n{}", page::text(&keys))
}

/// Returns the command line, for man pages and completions.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the agent until SIGTERM or SIGINT. `--dry-run`, `--cleanup` and `--rotate-key` do their work and
/// return.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let outcome = Config::read(&cli.config).and_then(|config| {
        capabilities::drop_others()?;
        if cli.dry_run {
            return dry_run(config);
        }
        if cli.cleanup {
            return cleanup(config);
        }
        if cli.rotate_key {
            print(&cluster::rotate(&section(config.cluster)?)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        Ok(run_parts(config, Log::start()?))
    });
    outcome.unwrap_or_else(|error| failure(&error))
}

fn dry_run(config: Config) -> anyhow::Result<ExitCode> {
    let runtime = event_loop()?;
    let lines = gc::dry_run(config.gc.unwrap_or_default(), config.runtime.directories());
    let lines = runtime.block_on(lines);
    runtime.shutdown_background();
    print(&lines?)?;
    Ok(ExitCode::SUCCESS)
}

fn cleanup(config: Config) -> anyhow::Result<ExitCode> {
    let networks = config.runtime.conf_dir;
    let config = section(config.cluster)?;
    let lines = event_loop()?.block_on(cluster::clean_up(&config, &networks));
    print(&lines?)?;
    Ok(ExitCode::SUCCESS)
}

fn section(cluster: Option<cluster::Config>) -> anyhow::Result<cluster::Config> {
    cluster.context("the configuration file has no section cluster")
}

/// Runs the configured parts of the agent until a signal or an error ends it. Returns the exit
/// status, and writes the error to standard error.
fn run_parts(config: Config, log: Log) -> ExitCode {
    let (dropped, guard) = (log.dropped.clone(), Guard::default());
    let shared = guard.clone();
    let outcome = until_signal(move |end| {
        let runtime = event_loop()?;
        let ended = runtime.block_on(parts::run(config, dropped, shared, end));
        // Does not wait for threads that wait for a plugin, because they would delay the end of the
        // process.
        runtime.shutdown_background();
        ended
    });
    guard.release();
    let status = outcome.map_or_else(|error| failure(&error), |()| ExitCode::SUCCESS);
    log.end();
    status
}

fn failure(error: &anyhow::Error) -> ExitCode {
    note!("cni-agent: {error:#}");
    ExitCode::FAILURE
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    written
        .and_then(|()| stdout.flush())
        .context("write to stdout")
}
