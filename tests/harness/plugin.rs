//! A run of an executable, and its outcome.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::{Host, Sandbox};

/// An executable with its environment and standard input.
#[derive(Debug, Clone)]
pub struct Invocation {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: BTreeMap<String, OsString>,
    stdin: Vec<u8>,
}

impl Invocation {
    pub(crate) fn new(host: &Host, program: &Path) -> Self {
        Self::of(program, host.search_path())
    }

    /// Creates a run with this `CNI_PATH`.
    pub(crate) fn of(program: &Path, search_path: impl Into<OsString>) -> Self {
        let invocation = Self {
            program: program.to_owned(),
            arguments: Vec::new(),
            environment: BTreeMap::new(),
            stdin: Vec::new(),
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let invocation = invocation.env("PATH", path);
        invocation.env("CNI_PATH", search_path)
    }

    /// Sets `CNI_COMMAND`.
    pub fn verb(self, verb: &str) -> Self {
        self.env("CNI_COMMAND", verb)
    }

    /// Sets `CNI_CONTAINERID`, `CNI_NETNS` and `CNI_IFNAME` for the sandbox's eth0.
    pub fn sandbox(self, sandbox: &Sandbox) -> Self {
        self.container(sandbox.name())
            .netns(sandbox.path())
            .ifname("eth0")
    }

    /// Sets `CNI_CONTAINERID`.
    pub fn container(self, id: &str) -> Self {
        self.env("CNI_CONTAINERID", id)
    }

    /// Sets `CNI_NETNS`.
    pub fn netns(self, path: impl AsRef<Path>) -> Self {
        self.env("CNI_NETNS", path.as_ref())
    }

    /// Sets `CNI_IFNAME`.
    pub fn ifname(self, name: &str) -> Self {
        self.env("CNI_IFNAME", name)
    }

    /// Sets `CNI_ARGS`.
    pub fn args(self, args: &str) -> Self {
        self.env("CNI_ARGS", args)
    }

    /// Adds a command-line argument; plugins have none.
    pub fn argument(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Wraps the run into `wrapper`, a program and its arguments.
    pub fn under(mut self, wrapper: &[String]) -> Self {
        let mut words: Vec<_> = wrapper.iter().map(OsString::from).collect();
        words.push(self.program.into_os_string());
        words.append(&mut self.arguments);
        self.program = words.remove(0).into();
        self.arguments = words;
        self
    }

    /// Removes all capabilities from the run.
    pub fn powerless(self) -> Self {
        self.with_capabilities(&[])
    }

    /// Limits the run to these capabilities, as in `net_admin`.
    pub fn with_capabilities(self, capabilities: &[&str]) -> Self {
        let allowed = capabilities.iter().map(|it| format!(",+{it}"));
        let bounds = format!("--bounding-set=-all{}", allowed.collect::<String>());
        let words = ["setpriv", &bounds, "--inh-caps=-all"];
        self.under(&words.map(str::to_owned))
    }

    /// Sets any variable.
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.insert(name.to_owned(), value.into());
        self
    }

    /// Removes a variable.
    pub fn without(mut self, name: &str) -> Self {
        self.environment.remove(name);
        self
    }

    /// Returns the value of a variable, which must be set.
    pub fn variable(&self, name: &str) -> &str {
        self.environment[name].to_str().unwrap()
    }

    /// Sets standard input to this document.
    pub fn config(self, config: &Value) -> Self {
        self.stdin(config.to_string())
    }

    /// Sets standard input to this text.
    pub fn stdin(mut self, stdin: impl Into<Vec<u8>>) -> Self {
        self.stdin = stdin.into();
        self
    }

    /// Returns the command, for tests that start it themselves.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command.env_clear().envs(&self.environment);
        command
    }

    /// Runs it and waits for its end.
    pub fn run(&self) -> Outcome {
        let mut command = self.command();
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{}: {error}", self.program.display()));
        let mut stdin = child.stdin.take().unwrap();
        let output = thread::scope(|scope| {
            scope.spawn(move || match stdin.write_all(&self.stdin) {
                // The program need not read everything.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                written => written.unwrap(),
            });
            child.wait_with_output().unwrap()
        });
        Outcome {
            status: output.status,
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Starts it and kills it after `time`; it may have ended before.
    pub fn kill_after(&self, time: Duration) {
        let mut command = self.command();
        command.stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        // A pipe holds more than a request.
        child.stdin.take().unwrap().write_all(&self.stdin).unwrap();
        #[expect(
            clippy::disallowed_methods,
            reason = "any instant is as good as another"
        )]
        thread::sleep(time);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Runs it; it must succeed. Returns its result, or null if it printed none.
    #[track_caller]
    pub fn ok(&self) -> Value {
        self.run().ok()
    }

    /// Runs it; it must fail with an error object.
    #[track_caller]
    pub fn error(&self) -> Refusal {
        self.run().error()
    }

    /// Runs it; it must fail as in [`Outcome::expect_failure`].
    #[track_caller]
    pub fn expect_failure(&self, words: &[&str]) {
        self.run().expect_failure(words);
    }
}

/// Outcome of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output, for the runtime.
    pub stdout: String,
    /// Standard error, for people.
    pub stderr: String,
}

impl Outcome {
    /// Checks that it succeeded and printed at most one JSON document, and returns that.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert!(self.status.success(), "{self:#?}");
        if self.stdout.is_empty() {
            return Value::Null;
        }
        let read = serde_json::from_str(&self.stdout);
        read.unwrap_or_else(|error| panic!("{error} in the result: {self:#?}"))
    }

    /// Checks that it failed with exit status 1, and that standard error contains each of `words`.
    #[track_caller]
    pub fn expect_failure(&self, words: &[&str]) {
        assert_eq!(self.status.code(), Some(1), "{self:#?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?}: {self:#?}");
        }
    }

    /// Checks that it failed with exit status 1 and one error object on standard output.
    #[track_caller]
    pub fn error(&self) -> Refusal {
        assert_eq!(self.status.code(), Some(1), "{self:#?}");
        let read = serde_json::from_str::<Value>(&self.stdout);
        let object = read.unwrap_or_else(|error| panic!("{error} in the error: {self:#?}"));
        let word = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
        let code = object["code"].as_u64();
        assert!(!word("msg").is_empty(), "no msg: {self:#?}");
        Refusal {
            cni_version: word("cniVersion"),
            code: code.unwrap_or_else(|| panic!("no code: {self:#?}")),
            msg: word("msg"),
            details: word("details"),
        }
    }
}

/// An error object of the protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Version of the object.
    pub cni_version: String,
    /// 1 to 99 belong to the specification, others to the plugin.
    pub code: u64,
    /// The attempted action.
    pub msg: String,
    /// The reason.
    pub details: String,
}

impl Refusal {
    /// Checks the code, and that message or details contain each of `words`.
    #[track_caller]
    pub fn expect(&self, code: u64, words: &[&str]) {
        assert_eq!(self.code, code, "{self:#?}");
        for word in words {
            assert!(self.mentions(word), "{word:?} is not mentioned: {self:#?}");
        }
    }

    /// Returns whether message or details contain `word`.
    pub fn mentions(&self, word: &str) -> bool {
        self.msg.contains(word) || self.details.contains(word)
    }
}
