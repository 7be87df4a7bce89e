//! Installs the executables where a runtime looks for them. On request, also writes a
//! configuration, and drop-ins that make network managers ignore the plugins' links.
//!
//! `install` makes all checks before the first change. It writes the configuration last, because a
//! runtime calls the plugins as soon as there is a configuration.

mod executables;
mod files;
mod neighbours;

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use cni::files::{self as bounded, if_present};
use cni::note;
use nix::sys::signal::SigSet;
use nix::sys::signal::Signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use runtime::{Conflist, PluginConfig};

use crate::drop_ins;
use executables::{Executables, Selection};
use files::Wanted;

/// Arguments of `install`.
#[derive(Debug, Args)]
pub struct Install {
    /// The directory of plugins
    #[arg(default_value = "/opt/cni/bin")]
    directory: PathBuf,
    /// The directory with the executables [default: the one of this executable]
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Then write this network configuration into NETCONFPATH
    #[arg(long, value_name = "FILE")]
    conflist: Option<PathBuf>,
    /// Make systemd-networkd, udev and NetworkManager ignore cni*, cbr0, veth* and bwp*
    #[arg(long)]
    drop_ins: bool,
    /// Replace a configuration or drop-in that differs
    #[arg(long)]
    force: bool,
    /// Then wait for SIGTERM, as a container of a DaemonSet has to
    #[arg(long)]
    stay: bool,
}

impl Install {
    /// Installs the executables and, if the arguments ask for them, drop-ins and a configuration.
    /// The configuration is written to `conf_directory`.
    pub fn run(&self, conf_directory: &Path) -> anyhow::Result<()> {
        let executables = Executables {
            from: self.from()?,
            directory: self.directory.clone(),
            selection: Selection::read(|name| env::var_os(name))?,
        };
        let mut wanted = Vec::new();
        if self.drop_ins {
            for (path, content) in drop_ins::needed() {
                wanted.extend(self.plan(path.into(), content.into())?);
            }
        }
        if let Some(file) = &self.conflist {
            wanted.extend(self.configuration(file, (&executables, conf_directory))?);
        }
        let lock = executables.lock()?;
        // These are blocked from here on, so they cannot end the process when only some files are
        // replaced. The kernel sends SIGHUP when the terminal closes.
        let signals = SigSet::from_iter([SIGHUP, SIGINT, SIGQUIT, SIGTERM]);
        signals.thread_block()?;
        executables.install()?;
        for file in wanted {
            file.put()?;
        }
        drop(lock);
        neighbours::report_executables(&self.directory);
        if let Some(name) = self.conflist.as_deref().and_then(Path::file_name) {
            neighbours::report_configurations(conf_directory, name)?;
        }
        if self.stay {
            signals.wait()?;
        }
        signals.thread_unblock().map_err(Into::into)
    }

    fn from(&self) -> anyhow::Result<PathBuf> {
        if let Some(directory) = &self.from {
            return Ok(directory.clone());
        }
        let own = env::current_exe().context("find this executable")?;
        let directory = own.parent().context("find this executable's directory")?;
        Ok(directory.to_owned())
    }

    fn configuration(
        &self,
        file: &Path,
        (executables, directory): (&Executables, &Path),
    ) -> anyhow::Result<Option<Wanted>> {
        let reading = || format!("--conflist {}", file.display());
        let bytes = bounded::read(file).with_context(reading)?;
        let list = Conflist::parse(bytes.clone()).with_context(reading)?;
        // It has other bytes if it was the configuration of a single plugin.
        ensure!(
            list.bytes == bytes,
            "{}: it contains a single plugin: runtimes read lists, with plugins, from *.conflist",
            reading()
        );
        for program in list.plugins.iter().flat_map(PluginConfig::programs) {
            ensure!(
                executables.will_have(program),
                "{}: plugin {program} is not in {}: install it there first",
                reading(),
                self.directory.display()
            );
        }
        // A runtime parses files `*.conf` and `*.json` as the configuration of a single plugin, and
        // refuses a list there.
        let extension = file.extension().and_then(|it| it.to_str());
        let Some(name) = file.file_name().filter(|_| extension == Some("conflist")) else {
            bail!("{}: runtimes read lists from *.conflist", reading());
        };
        self.plan(directory.join(name), bytes)
    }

    /// Returns the file to write at `place`; `None` if it already has the content.
    ///
    /// # Errors
    /// The file has other content and `--force` is not set, or it cannot be read.
    fn plan(&self, place: PathBuf, content: Vec<u8>) -> anyhow::Result<Option<Wanted>> {
        let found = if_present(bounded::read(&place));
        match found.with_context(|| format!("read {}", place.display()))? {
            Some(found) if found == content => {
                note!("{}: is there already", place.display());
                Ok(None)
            }
            Some(_) if !self.force => bail!(
                "{} is there and differs: --force replaces it",
                place.display()
            ),
            _ => Ok(Some(Wanted { place, content })),
        }
    }
}
