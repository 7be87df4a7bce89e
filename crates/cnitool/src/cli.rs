//! The command line. Only this module writes to standard output.

use std::env;
use std::fmt::Display;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use anyhow::{Context as _, bail};
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use cni::{InterfaceName, NetworkName, SpecVersion, note};
use itertools::Itertools as _;
use metrics::MOST_PODS;
use runtime::{Chain, Conflist, Entry};
use serde::Serialize;

use crate::add::add;
use crate::doctor::doctor;
use crate::gc::{Collect, gc};
use crate::install::Install;
use crate::limit::Change;
use crate::migrate::Migrate;
use crate::ps::ps;
use crate::scrape::scrape;
use crate::settings::Settings;
use upkeep::{follow_firewalld, reload};

/// Runs a network configuration list against a sandbox, as a container runtime does.
#[derive(Debug, Parser)]
#[command(
    version,
    long_version = LONG_VERSION.as_str(),
    help_template = TEMPLATE,
    after_help = VARIABLES,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
    /// The interface in the sandbox [default: `CNI_IFNAME`, or eth0]
    #[arg(short, long, alias = "interface", global = true)]
    ifname: Option<InterfaceName>,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    OfNetwork(OfNetwork),
    /// Restore rules that a reload of the host's firewall removed
    ///
    /// For each attachment with a cached result and an existing sandbox, the plugins add missing
    /// tables, chains, rules and elements of `nf_tables`, and missing addresses in a zone of
    /// firewalld. What exists stays untouched, except that an existing limit of `bandwidth` gets
    /// the rate in the cached result.
    Reload {
        /// The network's name [default: all networks]
        network: Option<NetworkName>,
        /// Stay, and restore again after each reload and each start of firewalld
        #[arg(long)]
        follow: bool,
    },
    /// Change the bandwidth of a live container
    ///
    /// Changes the limits in the kernel in place, then the cached result, so `check` and `reload`
    /// agree with the new rates. A direction that is not named keeps its limit. The network needs
    /// the plugin `bandwidth`, with rates from the runtime or from annotations of the pod.
    Limit(Change),
    /// Install the executables where runtimes look for them
    ///
    /// Each executable replaces the one of its name in one step, after all of them are copied and
    /// run. If a step fails, the previous executables are restored.
    Install(Install),
    /// Find out why pods of this node have no network
    ///
    /// Reads the configuration, the kernel's state, the firewall and the disk, and changes nothing.
    /// For networks of bridge and ptp, it copies the firewall into a temporary network namespace,
    /// and tries there whether packets of pods pass. The exit status is 2 if there are problems, 1
    /// if there are only warnings, and 0 otherwise.
    Doctor(Output),
    /// List the attachments of this node
    ///
    /// Combines cached results of runtimes, links, elements of `nf_tables` and leases. Fields that
    /// none of them contains are blank.
    Ps(Output),
    /// Print metrics of this node in the text format of `OpenMetrics`
    ///
    /// Counts addresses, attachments, host ports, elements of `nf_tables`, traffic and limits of
    /// pods, and the calls in the plugins' log files: those that the configuration names, and
    /// `CNI_LOG_FILE`. A metric is absent if its part of the node cannot be read; `cni_unread` is 1
    /// then, and the reason is on standard error.
    Metrics {
        /// Leave out the traffic and the limits of single pods
        #[arg(long)]
        no_pods: bool,
    },
    /// List firewall rules of the Go plugins (containernetworking/plugins), and remove those of deleted sandboxes
    ///
    /// An attachment is live if a link of the host leads to it, if its result is cached and its
    /// sandbox exists or, without a cached result, if it has a lease. Rules of `firewall` name only
    /// an address: they stay as long as a live sandbox has it. Chains and rules of iptables are
    /// removed with iptables-restore, rules of `nf_tables` with nft.
    Migrate(Migrate),
}

#[derive(Debug, Args)]
struct Output {
    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

impl Output {
    /// Prints the text for people or, with `--json`, the JSON value. Removes styles from the text
    /// if the output is not a terminal.
    fn print(&self, listing: &(impl Serialize + Display)) -> anyhow::Result<()> {
        let text = if self.json {
            serde_json::to_string_pretty(listing)?
        } else {
            listing.to_string()
        };
        print(text.trim_end_matches('\n'))
    }
}

/// Commands for one network.
#[derive(Debug, Subcommand)]
enum OfNetwork {
    /// Attach a sandbox and print the result
    ///
    /// If a plugin fails, calls DEL of all plugins, as runtimes do, unless something of the
    /// attachment existed before.
    Add(Target),
    /// Compare a sandbox with the state that `add` left
    Check(Target),
    /// Detach a sandbox, even if it no longer exists
    Del(Target),
    /// Remove resources of sandboxes that no longer exist
    ///
    /// gc calls DEL for an attachment only if it is proven to be stale: no cached result has an
    /// existing sandbox, and no link of this host leads to it, whatever runtime attached it. So gc
    /// is safe at any moment, even while pods start: it does not touch attachments that begin
    /// later, and keeps addresses that were leased less than five minutes ago without a result. If
    /// links cannot show whether attachments are live, gc removes nothing, reports why and exits
    /// with 1: outside the host's network namespace, with plugins other than bridge and ptp, or if
    /// an address behind a port of the bridge cannot be read.
    Gc {
        #[command(flatten)]
        network: Network,
        #[command(flatten)]
        collect: Collect,
    },
    /// Ask the plugins whether a sandbox could be attached
    Status(Network),
}

#[derive(Debug, Args)]
struct Target {
    /// The network's name
    network: String,
    /// The path of the sandbox's network namespace, such as /run/netns/a; check and del also take the
    /// ID of a container, or its first 12 or more characters
    netns: PathBuf,
}

#[derive(Debug, Args)]
struct Network {
    /// The network's name
    network: String,
    /// Ignored; the upstream tool requires it
    #[arg(hide = true)]
    netns: Option<PathBuf>,
}

/// Returns the command line, for man pages and completions.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command that the command line names, and returns its exit status. Reports an error on
/// standard error.
pub fn run() -> ExitCode {
    // On a wrong command line, clap itself prints the error and exits with 2.
    match execute(Cli::parse()) {
        Ok(status) => status,
        Err(error) => {
            note!("cnitool: {error:#}");
            note_missing_root();
            ExitCode::FAILURE
        }
    }
}

fn execute(cli: Cli) -> anyhow::Result<ExitCode> {
    let mut settings = Settings::read(|name| env::var_os(name))?;
    settings.interface = cli.ifname.unwrap_or(settings.interface);
    let directories = &settings.directories;
    match &cli.command {
        Command::OfNetwork(command) => execute_on(command, &settings)?,
        Command::Reload { network, follow } => {
            let command = if *follow { follow_firewalld } else { reload };
            command(directories, network.as_ref())?;
        }
        Command::Limit(change) => change.run(&settings)?,
        Command::Install(install) => install.run(&directories.networks)?,
        Command::Ps(output) => {
            let table = ps(directories);
            if table.is_partial {
                note_missing_root();
            }
            output.print(&table)?;
        }
        Command::Metrics { no_pods } => {
            let pods = (!no_pods).then_some(MOST_PODS);
            print(scrape(directories, pods)?.trim_end())?;
        }
        Command::Doctor(output) => {
            let page = doctor(directories);
            output.print(&page)?;
            return Ok(ExitCode::from(page.status()));
        }
        Command::Migrate(migrate) => migrate.run(directories, print)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn execute_on(command: &OfNetwork, settings: &Settings) -> anyhow::Result<()> {
    let directories = &settings.directories;
    let network = &command.network(settings)?;
    let chain = Chain::new(network, directories);
    match command {
        OfNetwork::Add(target) => {
            let sandbox = settings.sandbox(&network.name, &target.netns)?;
            let result = add(&chain, sandbox, settings)?;
            print(&format!("{result:#}"))
        }
        OfNetwork::Check(target) | OfNetwork::Del(target) => {
            let attached = settings.attached(&network.name, &target.netns)?;
            let lacks = || settings.lacks(&network.name, &target.netns);
            let mut sandbox = match (command, attached) {
                (_, Some(attached)) => attached,
                (OfNetwork::Check(_), None) => bail!(lacks()),
                (_, None) => {
                    note!("{}; DEL removes what remains", lacks());
                    settings.unattached(&network.name, &target.netns)?
                }
            };
            sandbox.arguments = settings.arguments(sandbox.arguments);
            if matches!(command, OfNetwork::Check(_)) {
                return chain.check(&sandbox);
            }
            note!("DEL {}", sandbox.attachment);
            chain.del_as_added(&sandbox)
        }
        OfNetwork::Gc { collect, .. } => gc(&chain, collect),
        OfNetwork::Status(_) => chain.status(),
    }
}

impl OfNetwork {
    /// Returns the configuration of the network. If the network is no longer configured, DEL uses
    /// the configuration that was cached by the sandbox's ADD.
    fn network(&self, settings: &Settings) -> anyhow::Result<Conflist> {
        let name = match self {
            Self::Add(target) | Self::Check(target) | Self::Del(target) => &target.network,
            Self::Gc { network, .. } | Self::Status(network) => &network.network,
        };
        let network = Conflist::find(&settings.directories.networks, name);
        let Self::Del(target) = self else {
            return network;
        };
        network.or_else(|error| target.cached_network(settings).ok().flatten().ok_or(error))
    }
}

impl Target {
    /// Returns the configuration that the cache has from the sandbox's ADD. Returns `None` if the
    /// cache has no entry for the sandbox, or if the entry has no configuration.
    fn cached_network(&self, settings: &Settings) -> anyhow::Result<Option<Conflist>> {
        let directories = &settings.directories;
        let Some(sandbox) = settings.attached(&self.network.parse()?, &self.netns)? else {
            return Ok(None);
        };
        let entry = directories.cache.read(&sandbox.attachment)?;
        let network = |entry: Entry| entry.network(&directories.networks);
        Ok(entry.map(network).transpose()?.flatten())
    }
}

/// Tells an ordinary user to run cnitool as root.
fn note_missing_root() {
    // The owner of this directory is the effective user.
    let user = std::fs::metadata("/proc/self").map(|it| it.uid());
    if user.is_ok_and(|it| it != 0) {
        note("cnitool needs root: run it as root, for example with sudo");
    }
}

/// Prints the text and the end of its line.
fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = anstream::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        // A reader such as `head` may close the pipe early.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("write to stdout"),
    }
}

/// The text of `--version`: the versions of this suite and of CNI, and the plugins of this suite.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let version = env!("CARGO_PKG_VERSION");
    let protocol = SpecVersion::list(SpecVersion::ALL);
    let plugins = schema::plugins().join(", ");
    format!(
        "{version}\nCNI protocol versions supported: {protocol}\n\
         plugins of this suite: {plugins}"
    )
});

const TEMPLATE: &str = "\
{name} {version}
{about-with-newline}
{usage-heading} {usage}

{all-args}{after-help}";

const VARIABLES: &str = "\
Environment:
  NETCONFPATH    Directory of network configurations [default: /etc/cni/net.d]
  CNI_PATH       Directories of plugins, separated by colons [default: /opt/cni/bin]
  CNI_ARGS       Arguments for the plugins: KEY=value;KEY=value
  CAP_ARGS       Values of capabilities, a JSON object: {\"mac\": \"02:00:00:00:00:01\"}
  CNI_IFNAME     The interface in the sandbox [default: eth0]
  CNI_CACHE_DIR  Directories whose `results` have cached results, separated by colons; `add` writes
                 to the first one [default: /var/lib/cni:/var/lib/cni/multus]
  CNI_LOG_FILE   Log file of the plugins, for `metrics` [default: those of the configuration]
  SKIP_CNI_BINARIES    Executables that `install` skips: names, separated by commas
  UPDATE_CNI_BINARIES  `false`: `install` keeps existing executables

`check` and `del` use the arguments of `add` if CNI_ARGS or CAP_ARGS is not set.";

#[cfg(test)]
mod tests;
