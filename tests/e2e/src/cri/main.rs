//! Requests pod sandboxes from a container runtime, as the kubelet does. Words and files are those
//! of `crictl`, which Debian 12 lacks.

mod api;
mod runtime;

use std::io::{Write as _, read_to_string};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand};
use serde_json::{Value, json};

use api::{PodSandboxConfig, PodSandboxStatusResponse, RuntimeStatus};
use runtime::Runtime;

/// Asks a container runtime for pod sandboxes, as the kubelet does.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// The runtime's socket
    #[arg(
        long,
        env = "CONTAINER_RUNTIME_ENDPOINT",
        default_value = "unix:///run/containerd/containerd.sock"
    )]
    runtime_endpoint: String,
    /// Seconds until the request is given up, at the runtime as well
    #[arg(long, default_value = "120")]
    timeout: u64,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a sandbox and print its ID
    Runp {
        /// What the pod wants, in JSON; - is standard input
        config: PathBuf,
    },
    /// Print what became of a sandbox
    Inspectp {
        /// The sandbox
        id: String,
    },
    /// Stop a sandbox, which takes its network away
    Stopp {
        /// The sandbox
        id: String,
    },
    /// Remove a sandbox
    Rmp {
        /// The sandbox
        id: String,
    },
    /// Print whether the runtime is ready; fails if it is not
    Info,
    /// Tell the runtime which addresses the node's pods are to have
    UpdateRuntimeConfig {
        /// A network of each family, separated by a comma
        #[arg(long)]
        pod_cidr: String,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match execute(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(std::io::stderr(), "cri: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn execute(cli: &Cli) -> anyhow::Result<()> {
    let timeout = Duration::from_secs(cli.timeout);
    let mut runtime = Runtime::connect(&cli.runtime_endpoint, timeout)?;
    match &cli.command {
        Command::Runp { config } => print(&runtime.run(read(config)?)?),
        Command::Inspectp { id } => print(&format!("{:#}", inspected(&runtime.status_of(id)?)?)),
        Command::Stopp { id } => runtime.stop(id),
        Command::Rmp { id } => runtime.remove(id),
        Command::UpdateRuntimeConfig { pod_cidr } => runtime.set_pod_cidr(pod_cidr),
        Command::Info => {
            let status = runtime.status()?;
            print(&format!("{:#}", json!({"status": status})))?;
            ready(&status)
        }
    }
}

fn read(path: &PathBuf) -> anyhow::Result<PodSandboxConfig> {
    let text = match path.to_str() {
        Some("-") => read_to_string(std::io::stdin()),
        _ => std::fs::read_to_string(path),
    };
    let text = text.with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))
}

/// Returns the status in crictl's format: the runtime's own information is a document beside it.
fn inspected(response: &PodSandboxStatusResponse) -> anyhow::Result<Value> {
    let info = response.info.get("info").map(String::as_str);
    let info: Value = serde_json::from_str(info.unwrap_or("null")).context("read info")?;
    Ok(json!({"status": response.status, "info": info}))
}

fn ready(status: &RuntimeStatus) -> anyhow::Result<()> {
    ensure!(!status.conditions.is_empty(), "the runtime says nothing");
    for condition in &status.conditions {
        ensure!(
            condition.status,
            "no {}: {}",
            condition.r#type,
            condition.message
        );
    }
    Ok(())
}

fn print(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{text}").context("write to stdout")
}
