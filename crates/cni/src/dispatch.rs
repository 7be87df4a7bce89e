//! Reads the request from the environment and standard input, runs the plugin's verb, and prints
//! the result or the error object.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde_json::{Value, json};

use crate::environment::Environment;
use crate::error::UNSPECIFIED;
use crate::files::identity;
use crate::{
    AddRequest, AddResult, CheckRequest, DelRequest, Document, Error, ErrorObject, GcRequest,
    Network, SpecVersion, StatusRequest, Undo, Verb, log, note, page, suite,
};

/// A plugin: its name, the versions of the CNI specification that it supports, and a function for
/// each verb. The verbs have no default function, so each plugin states what each verb does.
#[derive(Debug, Clone, Copy)]
pub struct Plugin {
    /// CNI `type` and file name of the executable.
    pub name: &'static str,
    /// Its page for operators, README.md, from which `--help` is written.
    pub page: &'static str,
    /// Supported versions of the CNI specification.
    pub spec_versions: &'static [SpecVersion],
    /// Attaches a sandbox. If anything fails, even printing the result, the function must undo all
    /// its changes before it returns.
    pub add: fn(&AddRequest, Answer) -> anyhow::Result<Answered>,
    /// Detaches a sandbox. A resource that no longer exists is no error.
    pub del: fn(&DelRequest) -> anyhow::Result<()>,
    /// Compares a sandbox with the state after ADD and reports differences.
    pub check: fn(&CheckRequest) -> anyhow::Result<()>,
    /// Returns an error with the reason if every ADD would fail.
    pub status: fn(&StatusRequest) -> anyhow::Result<()>,
    /// Removes resources of attachments that the runtime does not list. A failure does not stop the
    /// removal of other resources.
    pub gc: fn(&GcRequest) -> anyhow::Result<()>,
    /// Restores firewall rules of one sandbox after another program removed them (RELOAD, a verb of
    /// this suite). In `bandwidth`, also changes limits. `None` for a plugin without such rules.
    pub reload: Option<fn(&CheckRequest) -> anyhow::Result<()>>,
}

/// Permission to print the result of an ADD once.
#[derive(Debug)]
pub struct Answer(SpecVersion);

/// Proof that the result of an ADD was printed. [`Plugin::add`] returns it, so no ADD can succeed
/// without printing its result.
#[derive(Debug)]
pub struct Answered(());

impl Answer {
    /// Prints `result` in the CNI version of the request.
    ///
    /// # Errors
    /// [`Error::Io`] if standard output is closed or cannot be written.
    pub fn give(self, result: &AddResult) -> Result<Answered, Error> {
        log::step("answer");
        print(&result.to_json(self.0)).map(Answered)
    }

    /// Prints `result`, and discards the rollback steps of this ADD. If printing fails, ADD has
    /// failed, and the steps run.
    ///
    /// # Errors
    /// As [`Self::give`].
    pub fn give_and_keep(self, result: &AddResult, undo: Undo<'_>) -> Result<Answered, Error> {
        let answered = self.give(result)?;
        undo.keep();
        Ok(answered)
    }
}

/// Runs the verb of `plugin` that the environment and standard input request. Writes the result or
/// the error object to standard output. Without `CNI_COMMAND`, runs no verb and writes the versions
/// of the plugin to standard error. Returns the exit code of the process.
pub fn run(plugin: &Plugin) -> ExitCode {
    print_panics_as_errors();
    let Some(environment) = Environment::read(|name| std::env::var_os(name)).transpose() else {
        return match std::env::args_os().nth(1) {
            Some(word) if word == "--help" || word == "-h" => help(plugin),
            _ => by_hand(plugin),
        };
    };
    log::begin(plugin.name);
    match obey(plugin, environment) {
        Ok(()) => {
            log::end(Ok(()));
            ExitCode::SUCCESS
        }
        Err(object) => refuse(&object),
    }
}

/// Runs the verb of the request. A returned error object has the CNI version of the request. It has
/// the newest version for VERSION, and if the environment is invalid or [`accept`] fails.
fn obey(plugin: &Plugin, environment: Result<Environment, Error>) -> Result<(), ErrorObject> {
    let newest = |error: Error| ErrorObject::new(&error.into(), SpecVersion::CURRENT);
    let environment = environment.map_err(newest)?;
    if environment.verb == Verb::Version {
        return print_versions(plugin).map_err(newest);
    }
    let network = accept(&environment, plugin).map_err(newest)?;
    let version = network.version;
    dispatch(plugin, environment, network).map_err(|error| ErrorObject::new(&error, version))
}

fn accept(environment: &Environment, plugin: &Plugin) -> Result<Network, Error> {
    let document = Document::decode(read_stdin()?)?;
    log::configure(&document.config);
    let network = Network::parse(document, environment.path.clone(), plugin.spec_versions)?;
    let (verb, version) = (environment.verb, network.version);
    if version < verb.since() {
        return Err(Error::VerbTooNew { verb, version });
    }
    Ok(network)
}

fn dispatch(plugin: &Plugin, environment: Environment, network: Network) -> anyhow::Result<()> {
    match environment.verb {
        Verb::Add => {
            let answer = Answer(network.version);
            (plugin.add)(&AddRequest::parse(environment, network)?, answer).map(drop)
        }
        Verb::Del => (plugin.del)(&DelRequest::parse(environment, network)?),
        Verb::Check => (plugin.check)(&CheckRequest::parse(environment, network)?),
        Verb::Status => (plugin.status)(&StatusRequest { network }),
        Verb::Gc => (plugin.gc)(&GcRequest::parse(network)?),
        Verb::Version => Ok(()),
        Verb::Reload => {
            let Plugin { name, reload, .. } = plugin;
            let unknown = || format!("CNI_COMMAND RELOAD: {name} has no firewall rules to restore");
            let reload = reload.ok_or_else(|| Error::Environment(unknown()))?;
            reload(&CheckRequest::parse(environment, network)?)
        }
    }
}

/// Prints the versions of the plugin and the protocol to standard error, for a person who runs the
/// executable without `CNI_COMMAND`. nerdctl reads the first line, too.
fn by_hand(plugin: &Plugin) -> ExitCode {
    let version = env!("CARGO_PKG_VERSION");
    note!("CNI {} plugin v{version}", plugin.name);
    let versions = SpecVersion::list(plugin.spec_versions);
    note!("CNI protocol versions supported: {versions}");
    let names: Vec<_> = suite().map(|(name, _)| name).collect();
    note!(
        "plugins of this suite: {}; containernetworking/plugins has more",
        names.join(", ")
    );
    ExitCode::SUCCESS
}

/// Prints what the plugin is, and its keys.
fn help(plugin: &Plugin) -> ExitCode {
    let Plugin { name, page, .. } = plugin;
    let mut parts = page::introduction(page);
    let keys = page::keys(page, "Configuration reference");
    let common = "A container runtime executes this CNI plugin, with a network configuration on standard input. More \
                  keys, such as logFile, are on the page crates/every-plugin.md.";
    parts.push(page::Part::Text(common.to_owned()));
    parts.extend(keys);
    let written = write(&format!(
        "{name} v{}\n\n{}",
        env!("CARGO_PKG_VERSION"),
        page::text(&parts)
    ));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(error);
            ExitCode::FAILURE
        }
    }
}

/// Prints the answer to VERSION: the supported versions and verbs. Callers of RELOAD, a verb of
/// this suite, first look for RELOAD in this list: a plugin of another suite does not know the
/// verb, and might do anything.
fn print_versions(plugin: &Plugin) -> Result<(), Error> {
    let versions = plugin.spec_versions.iter();
    let mut verbs = Verb::ALL.to_vec();
    verbs.retain(|verb| *verb != Verb::Reload || plugin.reload.is_some());
    print(&json!({
        "cniVersion": SpecVersion::CURRENT.as_str(),
        "supportedVersions": versions.map(|it| it.as_str()).collect::<Vec<_>>(),
        "verbs": verbs,
    }))
}

fn refuse(object: &ErrorObject) -> ExitCode {
    if let Err(unprinted) = print(&json!(object)) {
        let ErrorObject { msg, details, .. } = object;
        note!("{msg}: {details}; {unprinted}");
    }
    log::end(Err(object));
    ExitCode::FAILURE
}

fn read_stdin() -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut stdin = io::stdin().lock().take(STDIN_LIMIT + 1);
    let read = stdin.read_to_end(&mut bytes).and_then(|size| {
        if size as u64 <= STDIN_LIMIT {
            return Ok(bytes);
        }
        let reason = format!("the request is larger than {} MiB", STDIN_LIMIT >> 20);
        Err(io::Error::new(io::ErrorKind::FileTooLarge, reason))
    });
    read.map_err(Error::io("read stdin"))
}

/// Writes `value` and a line end to standard output.
fn print(value: &Value) -> Result<(), Error> {
    let mut line = value.to_string();
    line.push('\n');
    write(&line).map_err(Error::io("write the result to stdout"))
}

/// Writes to standard output. No other function of a plugin writes there.
fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    expect_open()
        .and_then(|()| stdout.write_all(text.as_bytes()))
        .and_then(|()| stdout.flush())
}

/// Checks that the caller has not closed standard output. In its place, Rust opens /dev/null for
/// reading and writing. A caller that wants no output opens /dev/null only for writing.
fn expect_open() -> io::Result<()> {
    let stdout = io::stdout();
    if fcntl(&stdout, FcntlArg::F_GETFL)? & OFlag::O_ACCMODE.bits() != OFlag::O_RDWR.bits() {
        return Ok(());
    }
    match identity(fs::metadata("/proc/self/fd/1")) {
        Some(found) if Some(found) == identity(fs::metadata("/dev/null")) => {
            Err(io::Error::other("it is closed"))
        }
        _ => Ok(()),
    }
}

/// Makes each panic, which is a bug, print an error object to standard output, as the runtime
/// expects of every failure.
fn print_panics_as_errors() {
    std::panic::set_hook(Box::new(|panic| {
        let object = ErrorObject {
            cni_version: SpecVersion::CURRENT.to_string(),
            code: UNSPECIFIED,
            msg: "internal error, please report it".into(),
            details: panic.to_string(),
        };
        note(panic);
        drop(print(&json!(object)));
        log::end(Err(&object));
    }));
}

/// Size limit of a request in bytes. A configuration and a result take a few KiB. In a GC request,
/// each attachment takes about a hundred bytes, so the limit is enough for 80,000 attachments.
const STDIN_LIMIT: u64 = 8 << 20;
