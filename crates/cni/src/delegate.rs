//! Calls another plugin, as a main plugin calls its IPAM plugin.

use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output};
use std::time::Duration;

use serde_json::Value;

use crate::environment::COMMAND;
use crate::network::IPAM_TIMEOUT;
use crate::process::Process;
use crate::{
    AddResult, Error, ErrorObject, GOING_ON, Network, Role, Verb, json, or_note, result, role,
};

/// Another plugin that this plugin can start, such as an IPAM plugin. It gets the standard input
/// and the environment of this plugin, with the verb of the call in `CNI_COMMAND`.
#[derive(Debug, Clone)]
pub struct Delegate<'a> {
    name: String,
    program: PathBuf,
    network: &'a Network,
}

impl<'a> Delegate<'a> {
    /// Returns the IPAM plugin that `ipam.type` names; `None` if the configuration has no
    /// `ipam.type`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if `ipam.type` is not a plain file name, or if no directory of
    /// `CNI_PATH` contains the executable.
    pub fn ipam(network: &'a Network) -> Result<Option<Self>, Error> {
        let Some(name) = network.ipam_type()? else {
            return Ok(None);
        };
        let path = &network.path;
        let program = path.find(&name).ok_or_else(|| {
            let reason = format!("no executable {name:?} in CNI_PATH {path}");
            Error::invalid("ipam.type", reason)
        })?;
        Ok(Some(Self {
            name,
            program,
            network,
        }))
    }

    /// Returns the plugin's file name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts the plugin's executable for `verb`, but does not send the request yet. The first call
    /// of [`Started::proceed`], [`Started::result`] or [`Started::finish`] sends the request.
    ///
    /// # Errors
    /// - [`Error::Io`]: the executable cannot be started.
    /// - [`Error::InvalidConfig`]: `ipamTimeout` is invalid. For DEL and GC, this is no error: they
    ///   use the default, because they must work even if the configuration has become invalid.
    pub fn start(self, verb: Verb) -> Result<Started<'a>, Error> {
        let limit = match self.network.ipam_timeout() {
            asked @ Err(_) if matches!(verb, Verb::Del | Verb::Gc) => {
                or_note(asked, GOING_ON).unwrap_or(IPAM_TIMEOUT)
            }
            asked => asked?,
        };
        let mut command = Command::new(&self.program);
        command.env(COMMAND, verb.to_string());
        Ok(Started {
            process: Process::start(&self.name, &mut command, (Some(limit), OUTPUT_LIMIT))?,
            network: self.network,
        })
    }
}

/// A started plugin. Dropping this value kills the plugin, unless the caller has waited for it.
#[derive(Debug)]
#[must_use = "a delegate is killed unless the caller waits for it"]
pub struct Started<'a> {
    process: Process,
    network: &'a Network,
}

impl Started<'_> {
    /// Returns what this suite's plugin of that name is for; `None` if the suite has no such IPAM
    /// plugin.
    pub fn role(&self) -> Option<Role> {
        role(&self.network.ipam_type().ok()??)
    }

    /// Sends as much of the request as fits into the pipe, so that the plugin can run while the
    /// caller does other work. [`Self::result`] or [`Self::finish`] sends the rest and waits for
    /// the plugin.
    ///
    /// # Errors
    /// [`Error::Io`] if the request cannot be sent.
    pub fn proceed(&mut self) -> Result<(), Error> {
        self.process.feed(self.network.stdin())
    }

    /// Waits until the plugin's ADD has ended, and returns the result that it printed.
    ///
    /// # Errors
    /// As [`Self::finish`]; [`Error::Decode`] if the output is not a result.
    pub fn result(self) -> Result<AddResult, Error> {
        let version = self.network.version;
        let what = format!("result of {}", self.process.name);
        let output = self.outcome()?;
        match serde_json::from_slice(&output) {
            Ok(value) => result::read(value, version, &what),
            Err(error) => {
                let reason = match output.trim_ascii() {
                    [] => "it succeeded and printed nothing".into(),
                    printed => format!("{error}: {:?}", excerpt(printed)),
                };
                Err(Error::Decode { what, reason })
            }
        }
    }

    /// Waits until the plugin has ended, and ignores its output. For verbs that print no result,
    /// such as DEL.
    ///
    /// # Errors
    /// - [`Error::Delegate`] with the plugin's code: the plugin failed.
    /// - [`Error::TryAgain`]: the plugin took longer than `ipamTimeout`. This function kills it.
    /// - [`Error::Io`]: the plugin's output cannot be read or exceeds 16 MiB. This function kills
    ///   the plugin.
    pub fn finish(self) -> Result<(), Error> {
        self.outcome().map(drop)
    }

    fn outcome(self) -> Result<Vec<u8>, Error> {
        outcome(self.process, self.network.stdin()).map_err(|error| match error {
            Error::TryAgain(message) => {
                Error::TryAgain(format!("{message}; ipamTimeout says how long it may take"))
            }
            error => error,
        })
    }
}

/// Runs `command`, the plugin called `name`. Sends `request` to its standard input and returns its
/// standard output. Kills the plugin with its process group if it takes longer than `limit`; `None`
/// means no time limit.
///
/// # Errors
/// - [`Error::Delegate`] with the plugin's code: the plugin failed.
/// - [`Error::TryAgain`]: the plugin took longer than `limit`.
/// - [`Error::Io`]: the executable cannot be started, or its output cannot be read or exceeds 16
///   MiB.
pub fn run(
    limit: Option<Duration>,
    name: &str,
    command: &mut Command,
    request: &[u8],
) -> Result<Vec<u8>, Error> {
    outcome(
        Process::start(name, command, (limit, OUTPUT_LIMIT))?,
        request,
    )
}

fn outcome(process: Process, request: &[u8]) -> Result<Vec<u8>, Error> {
    let plugin = process.name.clone();
    let Output {
        status,
        stdout: output,
        ..
    } = process.finish(request)?;
    if status.success() {
        return Ok(output);
    }
    let value = serde_json::from_slice::<Value>(&output).ok();
    let printed = value.and_then(|value| json::read(&value, "").ok());
    Err(Error::Delegate {
        plugin,
        is_answer: printed.is_some(),
        object: printed.map_or_else(|| unprinted_object(&output, status), |it| it.value),
    })
}

/// Returns an error object for a plugin that failed and printed no error object itself.
fn unprinted_object(output: &[u8], status: ExitStatus) -> ErrorObject {
    ErrorObject {
        cni_version: String::new(),
        code: crate::error::UNSPECIFIED,
        msg: format!("ended with {status} and without an error object"),
        details: excerpt(output),
    }
}

fn excerpt(output: &[u8]) -> String {
    String::from_utf8_lossy(output).chars().take(200).collect()
}

/// Maximum size of a plugin's output in bytes. A result with a few hundred interfaces takes less
/// than one MiB.
const OUTPUT_LIMIT: usize = 16 << 20;
