//! Calling another plugin, as a main plugin calls the one that manages addresses.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::Deserialize;
use serde_json::Value;

use crate::environment::{COMMAND, Verb};
use crate::error::{Error, ErrorObject};
use crate::json;
use crate::network::Network;
use crate::result::{self, AddResult};

/// A plugin that is called with this plugin's own environment and standard input.
#[derive(Debug, Clone)]
pub struct Delegate<'a> {
    name: String,
    program: PathBuf,
    network: &'a Network,
}

impl<'a> Delegate<'a> {
    /// The plugin that `ipam.type` names, if it names one.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] where no directory of `CNI_PATH` has such an executable.
    pub fn ipam(network: &'a Network) -> Result<Option<Self>, Error> {
        let Some(name) = network.ipam_type()? else {
            return Ok(None);
        };
        let program = network.path.find(&name).ok_or_else(|| {
            let path = &network.path;
            Error::invalid(
                "ipam.type",
                format!("no executable {name:?} in CNI_PATH {path}"),
            )
        })?;
        Ok(Some(Self {
            name,
            program,
            network,
        }))
    }

    /// The file name of the plugin.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts `verb` and returns while it runs.
    ///
    /// # Errors
    /// [`Error::Io`] where it cannot be started.
    pub fn start(&self, verb: Verb) -> Result<Running<'_>, Error> {
        let mut command = Command::new(&self.program);
        command.env(COMMAND, verb.as_str());
        Ok(Running {
            delegate: self,
            child: spawn(&mut command, self.network.stdin())?,
        })
    }

    /// Runs a verb that has no result to its end.
    ///
    /// # Errors
    /// As [`Self::start`] and [`Running::finish`].
    pub fn call(&self, verb: Verb) -> Result<(), Error> {
        self.start(verb)?.finish().map(drop)
    }
}

/// A verb under way. Whoever starts one waits for it.
#[derive(Debug)]
#[must_use = "a delegate that nobody waits for may act after its caller failed"]
pub struct Running<'a> {
    delegate: &'a Delegate<'a>,
    child: Child,
}

impl Running<'_> {
    /// Waits for an ADD and reads its result.
    ///
    /// # Errors
    /// As [`Self::finish`]; [`Error::Decode`] where the result is none.
    pub fn result(self) -> Result<AddResult, Error> {
        let delegate = self.delegate;
        let what = format!("result of {}", delegate.name);
        let output = self.finish()?;
        let value: Value = match serde_json::from_slice(&output) {
            Ok(value) => value,
            Err(error) => {
                return Err(Error::Decode {
                    what,
                    reason: error.to_string(),
                });
            }
        };
        result::read(value, delegate.network.version, &what)
    }

    /// Waits for the end and hands back what was printed.
    ///
    /// # Errors
    /// [`Error::Delegate`] with the code that it gave, where it failed; [`Error::Io`]
    /// where its output cannot be read or is beyond all measure.
    pub fn finish(self) -> Result<Vec<u8>, Error> {
        wait(&self.delegate.name, self.child)
    }
}

/// Runs `command`, which is the plugin called `name`, to its end with `request` as its
/// standard input, and hands back what it printed.
///
/// # Errors
/// As [`Delegate::start`] and [`Running::finish`].
pub fn run(name: &str, command: &mut Command, request: &[u8]) -> Result<Vec<u8>, Error> {
    wait(name, spawn(command, request)?)
}

fn spawn(command: &mut Command, request: &[u8]) -> Result<Child, Error> {
    let stdin = input_file(request);
    let spawned = stdin.and_then(|stdin| command.stdin(stdin).stdout(Stdio::piped()).spawn());
    spawned.map_err(|source| Error::Io {
        action: format!("start {}", Path::new(command.get_program()).display()),
        source,
    })
}

fn wait(name: &str, mut child: Child) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Io {
        action: format!("run {name}"),
        source,
    };
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let read = stdout.take(OUTPUT_LIMIT + 1).read_to_end(&mut output);
        read.map_err(failed)?;
    }
    if output.len() as u64 > OUTPUT_LIMIT {
        child.kill().map_err(failed)?;
        child.wait().map_err(failed)?;
        let reason = format!("it printed more than {} MiB", OUTPUT_LIMIT >> 20);
        return Err(failed(std::io::Error::other(reason)));
    }
    let status = child.wait().map_err(failed)?;
    if status.success() {
        return Ok(output);
    }
    Err(Error::Delegate {
        plugin: name.to_owned(),
        object: error_object(&output, status),
    })
}

/// A file in memory: unlike a pipe it needs nobody to feed it.
fn input_file(bytes: &[u8]) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("cni-request", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// What a failed plugin printed, or what can be said of it where that is no error object.
fn error_object(output: &[u8], status: ExitStatus) -> ErrorObject {
    #[derive(Deserialize)]
    struct Printed {
        code: u32,
        #[serde(default)]
        msg: String,
        #[serde(default)]
        details: String,
    }
    let value = serde_json::from_slice::<Value>(output).ok();
    let printed = value.and_then(|value| json::read::<Printed>(&value, "").ok());
    match printed.map(|read| read.value) {
        Some(printed) => ErrorObject {
            cni_version: String::new(),
            code: printed.code,
            msg: printed.msg,
            details: printed.details,
        },
        None => ErrorObject {
            cni_version: String::new(),
            code: crate::error::UNSPECIFIED,
            msg: format!("ended with {status} and without an error object"),
            details: excerpt(output),
        },
    }
}

fn excerpt(output: &[u8]) -> String {
    String::from_utf8_lossy(output).chars().take(200).collect()
}

/// A result of a few hundred interfaces is well under one MiB.
const OUTPUT_LIMIT: u64 = 16 << 20;
