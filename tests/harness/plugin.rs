//! One run of an executable, and what came of it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::{Host, Sandbox};

/// An executable, its environment and its standard input.
#[derive(Debug, Clone)]
pub struct Invocation {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: BTreeMap<String, OsString>,
    stdin: Vec<u8>,
}

impl Invocation {
    pub(crate) fn new(host: &Host, program: &Path) -> Self {
        let invocation = Self {
            program: program.to_owned(),
            arguments: Vec::new(),
            environment: BTreeMap::new(),
            stdin: Vec::new(),
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let invocation = invocation.env("PATH", path);
        invocation.env("CNI_PATH", host.search_path())
    }

    /// `CNI_COMMAND`.
    pub fn verb(self, verb: &str) -> Self {
        self.env("CNI_COMMAND", verb)
    }

    /// `CNI_CONTAINERID`, `CNI_NETNS` and `CNI_IFNAME` for the sandbox's eth0.
    pub fn sandbox(self, sandbox: &Sandbox) -> Self {
        self.container(sandbox.name())
            .netns(sandbox.path())
            .ifname("eth0")
    }

    /// `CNI_CONTAINERID`.
    pub fn container(self, id: &str) -> Self {
        self.env("CNI_CONTAINERID", id)
    }

    /// `CNI_NETNS`.
    pub fn netns(self, path: impl AsRef<Path>) -> Self {
        self.env("CNI_NETNS", path.as_ref())
    }

    /// `CNI_IFNAME`.
    pub fn ifname(self, name: &str) -> Self {
        self.env("CNI_IFNAME", name)
    }

    /// `CNI_ARGS`.
    pub fn args(self, args: &str) -> Self {
        self.env("CNI_ARGS", args)
    }

    /// An argument of the command line, which plugins have none of.
    pub fn argument(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// The same run, started by `wrapper`, a program and its arguments.
    pub fn under(mut self, wrapper: &[String]) -> Self {
        let mut words: Vec<_> = wrapper.iter().map(OsString::from).collect();
        words.push(self.program.into_os_string());
        words.append(&mut self.arguments);
        self.program = words.remove(0).into();
        self.arguments = words;
        self
    }

    /// The same run without any capability.
    pub fn powerless(self) -> Self {
        self.with_capabilities(&[])
    }

    /// The same run with these capabilities alone, as in `net_admin`.
    pub fn with_capabilities(self, capabilities: &[&str]) -> Self {
        let allowed = capabilities.iter().map(|it| format!(",+{it}"));
        let bounds = format!("--bounding-set=-all{}", allowed.collect::<String>());
        let words = ["setpriv", &bounds, "--inh-caps=-all"];
        self.under(&words.map(str::to_owned))
    }

    /// Any variable.
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.insert(name.to_owned(), value.into());
        self
    }

    /// Removes a variable.
    pub fn without(mut self, name: &str) -> Self {
        self.environment.remove(name);
        self
    }

    /// The value of a variable that is set.
    pub fn variable(&self, name: &str) -> &str {
        self.environment[name].to_str().unwrap()
    }

    /// Standard input is this document.
    pub fn config(self, config: &Value) -> Self {
        self.stdin(config.to_string())
    }

    /// Standard input is this text.
    pub fn stdin(mut self, stdin: impl Into<Vec<u8>>) -> Self {
        self.stdin = stdin.into();
        self
    }

    /// The command, for tests that want to start it by themselves.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command.env_clear().envs(&self.environment);
        command
    }

    /// Runs it to its end.
    pub fn run(&self) -> Outcome {
        let mut command = self.command();
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{}: {error}", self.program.display()));
        let mut stdin = child.stdin.take().unwrap();
        let output = thread::scope(|scope| {
            scope.spawn(move || match stdin.write_all(&self.stdin) {
                // Nobody has to read it all.
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

    /// Starts it and kills it so long after, wherever it is then; it may have ended before.
    pub fn kill_after(&self, time: Duration) {
        let mut command = self.command();
        command.stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        // A pipe holds more than a request has.
        child.stdin.take().unwrap().write_all(&self.stdin).unwrap();
        #[expect(
            clippy::disallowed_methods,
            reason = "any instant is as good as another"
        )]
        thread::sleep(time);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Runs it; it has to succeed. Hands back its result, or null where it printed none.
    #[track_caller]
    pub fn ok(&self) -> Value {
        self.run().ok()
    }

    /// Runs it; it has to fail in the manner of the protocol.
    #[track_caller]
    pub fn error(&self) -> Refusal {
        self.run().error()
    }
}

/// What an executable left.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How it ended.
    pub status: ExitStatus,
    /// The protocol.
    pub stdout: String,
    /// For people.
    pub stderr: String,
}

impl Outcome {
    /// It succeeded, and printed nothing or one JSON document, which is handed back.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert!(self.status.success(), "{self:#?}");
        if self.stdout.is_empty() {
            return Value::Null;
        }
        let read = serde_json::from_str(&self.stdout);
        read.unwrap_or_else(|error| panic!("{error} in the result: {self:#?}"))
    }

    /// It failed with exit status 1 and one error object on standard output.
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
    /// The version that the object is in.
    pub cni_version: String,
    /// 1 to 99 are the specification's, others the plugin's.
    pub code: u64,
    /// What was being done.
    pub msg: String,
    /// Why it did not work.
    pub details: String,
}

impl Refusal {
    /// The code is `code`, and message or details hold every one of `words`.
    #[track_caller]
    pub fn expect(&self, code: u64, words: &[&str]) {
        assert_eq!(self.code, code, "{self:#?}");
        for word in words {
            assert!(self.mentions(word), "{word:?} is not mentioned: {self:#?}");
        }
    }

    /// Message or details hold `word`.
    pub fn mentions(&self, word: &str) -> bool {
        self.msg.contains(word) || self.details.contains(word)
    }
}
