//! Calling another plugin, as a main plugin calls the one that manages addresses.

use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::fcntl::{FcntlArg, fcntl};
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

    /// Starts the executable, which does nothing before it has its request.
    ///
    /// # Errors
    /// [`Error::Io`] where it cannot be started.
    pub fn start(self, verb: Verb) -> Result<Waiting<'a>, Error> {
        let mut command = Command::new(&self.program);
        command.env(COMMAND, verb.as_str());
        Ok(Waiting {
            process: Process::start(&self.name, &mut command)?,
            network: self.network,
        })
    }

    /// Runs a verb that has no result to its end.
    ///
    /// # Errors
    /// As [`Self::start`] and [`Running::finish`].
    pub fn call(self, verb: Verb) -> Result<(), Error> {
        self.start(verb)?.proceed()?.finish().map(drop)
    }
}

/// A plugin that waits for its request. One that never gets it is ended.
#[derive(Debug)]
#[must_use = "it does nothing yet"]
pub struct Waiting<'a> {
    process: Process,
    network: &'a Network,
}

impl<'a> Waiting<'a> {
    /// Hands the request over and returns while the plugin works.
    ///
    /// # Errors
    /// [`Error::Io`] where it does not take it.
    pub fn proceed(mut self) -> Result<Running<'a>, Error> {
        self.process.feed(self.network.stdin())?;
        let Self { process, network } = self;
        Ok(Running { process, network })
    }
}

/// A verb under way. Whoever starts one waits for it.
#[derive(Debug)]
#[must_use = "a delegate that nobody waits for may act after its caller failed"]
pub struct Running<'a> {
    process: Process,
    network: &'a Network,
}

impl Running<'_> {
    /// Waits for an ADD and reads its result.
    ///
    /// # Errors
    /// As [`Self::finish`]; [`Error::Decode`] where the result is none.
    pub fn result(self) -> Result<AddResult, Error> {
        let version = self.network.version;
        let what = format!("result of {}", self.process.name);
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
        result::read(value, version, &what)
    }

    /// Waits for the end and hands back what was printed.
    ///
    /// # Errors
    /// [`Error::Delegate`] with the code that it gave, where it failed; [`Error::Io`]
    /// where its output cannot be read or is beyond all measure.
    pub fn finish(mut self) -> Result<Vec<u8>, Error> {
        self.process.finish()
    }
}

/// Runs `command`, which is the plugin called `name`, to its end with `request` as its
/// standard input, and hands back what it printed.
///
/// # Errors
/// As [`Delegate::start`] and [`Running::finish`].
pub fn run(name: &str, command: &mut Command, request: &[u8]) -> Result<Vec<u8>, Error> {
    let mut process = Process::start(name, command)?;
    process.feed(request)?;
    process.finish()
}

/// A plugin's process, which is waited for whatever happens.
#[derive(Debug)]
struct Process {
    name: String,
    child: Child,
}

impl Process {
    fn start(name: &str, command: &mut Command) -> Result<Self, Error> {
        let (stdin, stdout) = (Stdio::piped(), Stdio::piped());
        let child = command.stdin(stdin).stdout(stdout).spawn();
        let child = child.map_err(|source| Error::Io {
            action: format!("start {}", Path::new(command.get_program()).display()),
            source,
        })?;
        let name = name.to_owned();
        Ok(Self { name, child })
    }

    /// The pipe holds a request of any size that is usual, so that nobody waits for anybody.
    fn feed(&mut self, request: &[u8]) -> Result<(), Error> {
        let Some(mut stdin) = self.child.stdin.take() else {
            return Ok(());
        };
        if request.len() > PIPE_CAPACITY {
            let size = FcntlArg::F_SETPIPE_SZ(request.len().try_into().unwrap_or(i32::MAX));
            // Refused, it is written as fast as the plugin reads.
            fcntl(&stdin, size).ok();
        }
        match stdin.write_all(request) {
            // Why it did not read to the end, its own end tells.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(|source| self.failed(source)),
        }
    }

    fn finish(&mut self) -> Result<Vec<u8>, Error> {
        let mut output = Vec::new();
        if let Some(stdout) = self.child.stdout.take() {
            let read = stdout.take(OUTPUT_LIMIT + 1).read_to_end(&mut output);
            read.map_err(|source| self.failed(source))?;
        }
        if output.len() as u64 > OUTPUT_LIMIT {
            self.child.kill().map_err(|source| self.failed(source))?;
            let reason = format!("it printed more than {} MiB", OUTPUT_LIMIT >> 20);
            return Err(self.failed(std::io::Error::other(reason)));
        }
        let status = self.child.wait().map_err(|source| self.failed(source))?;
        if status.success() {
            return Ok(output);
        }
        Err(Error::Delegate {
            plugin: self.name.clone(),
            object: error_object(&output, status),
        })
    }

    fn failed(&self, source: std::io::Error) -> Error {
        Error::Io {
            action: format!("run {}", self.name),
            source,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Without a request it has done nothing, and would complain.
        if self.child.stdin.take().is_some() {
            self.child.kill().ok();
        }
        drop(self.child.stdout.take());
        self.child.wait().ok();
    }
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

/// Of a pipe that nobody enlarged: pipe(7).
const PIPE_CAPACITY: usize = 64 << 10;
