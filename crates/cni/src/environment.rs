//! The environment variables of CNI, whose names start with `CNI_`.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize as _;
use serde::de::{self, IntoDeserializer as _};

use crate::args::is_true;
use crate::files::identity;
use crate::{ContainerId, Error, InterfaceName, Verb};

/// `CNI_PATH`: the directories to search for delegates, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchPath(Vec<PathBuf>);

impl SearchPath {
    /// Splits `text`, the value of `CNI_PATH`, at colons. Ignores empty parts, as in `/a::/b`.
    pub fn parse(text: &str) -> Self {
        let entries = std::env::split_paths(text);
        let entries = entries.filter(|entry| !entry.as_os_str().is_empty());
        Self(entries.collect())
    }

    /// Returns the directories in the order of the search.
    pub fn directories(&self) -> &[PathBuf] {
        &self.0
    }

    /// Returns the path of the first executable regular file called `name`. Returns `None` if no
    /// directory contains such a file.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        let mut candidates = self.0.iter().map(|directory| directory.join(name));
        candidates.find(|path| is_executable_file(path))
    }
}

impl fmt::Display for SearchPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<_> = self.0.iter().map(|path| path.to_string_lossy()).collect();
        f.write_str(&entries.join(":"))
    }
}

fn is_executable_file(path: &Path) -> bool {
    use nix::unistd::{AccessFlags, access};
    path.is_file() && access(path, AccessFlags::X_OK).is_ok()
}

/// The environment variables of one invocation. All variables that the verb requires are present
/// and valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Environment {
    pub verb: Verb,
    /// `CNI_CONTAINERID` and `CNI_IFNAME`; `None` for GC, STATUS and VERSION.
    pub names: Option<(ContainerId, InterfaceName)>,
    pub netns: Option<PathBuf>,
    pub own_namespace_allowed: bool,
    pub args: String,
    pub path: SearchPath,
}

impl Environment {
    /// Reads the variables through `lookup`. Returns `None` if `CNI_COMMAND` is unset or empty, as
    /// it is if a person runs the plugin by hand.
    ///
    /// # Errors
    /// [`Error::Environment`] names a variable with an invalid value, or all missing variables.
    pub fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, Error> {
        let value = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let text = |name: &str| parsed::<String>(name, value(name));
        let Some(command) = text(COMMAND)? else {
            return Ok(None);
        };
        let verb = verb(&command)?;
        let is_addressed = required(verb).contains(&CONTAINER_ID);
        let addressed = |name: &str| value(name).filter(|_| is_addressed);
        let container = parsed(CONTAINER_ID, addressed(CONTAINER_ID))?;
        let interface = parsed(IFNAME, addressed(IFNAME))?;
        let mut missing = required(verb).to_vec();
        missing.retain(|name| value(name).is_none());
        if !missing.is_empty() {
            let problem = format!("{verb} needs {}", missing.join(", "));
            return Err(Error::Environment(problem));
        }
        Ok(Some(Self {
            verb,
            names: container.zip(interface),
            netns: addressed(NETNS).map(PathBuf::from),
            own_namespace_allowed: text(NETNS_OVERRIDE)?.is_some_and(|it| is_true(&it)),
            args: text(ARGS)?.unwrap_or_default(),
            path: SearchPath::parse(&text(PATH)?.unwrap_or_default()),
        }))
    }

    /// Returns whether `CNI_NETNS` is the network namespace of this process. If so, DEL takes the
    /// sandbox for deleted, and ADD, CHECK and RELOAD fail. Always false if `CNI_NETNS_OVERRIDE` is
    /// `1` or `true`.
    pub fn is_in_own_namespace(&self) -> bool {
        let of = |path: &Path| identity(fs::metadata(path));
        let own = || of(Path::new("/proc/self/ns/net"));
        let sandbox = self.netns.as_deref().and_then(of);
        sandbox.is_some() && sandbox == own() && !self.own_namespace_allowed
    }
}

fn verb(text: &str) -> Result<Verb, Error> {
    Verb::deserialize(text.into_deserializer()).map_err(|_: de::value::Error| {
        Error::Environment(format!(
            "CNI_COMMAND {text:?} is none of ADD, DEL, CHECK, STATUS, GC, VERSION, RELOAD"
        ))
    })
}

/// Returns the variables that the verb requires.
fn required(verb: Verb) -> &'static [&'static str] {
    match verb {
        Verb::Add | Verb::Check | Verb::Reload => &[CONTAINER_ID, NETNS, IFNAME],
        Verb::Del => &[CONTAINER_ID, IFNAME],
        Verb::Gc => &[PATH],
        Verb::Status | Verb::Version => &[],
    }
}

fn parsed<T: FromStr<Err: fmt::Display>>(
    name: &str,
    value: Option<OsString>,
) -> Result<Option<T>, Error> {
    let parse = |value: OsString| match value.into_string() {
        Ok(text) => text.parse().map_err(|reason| format!("{name}: {reason}")),
        Err(value) => Err(format!("{name} {} is not UTF-8", value.display())),
    };
    value.map(parse).transpose().map_err(Error::Environment)
}

pub(crate) const COMMAND: &str = "CNI_COMMAND";
pub(crate) const CONTAINER_ID: &str = "CNI_CONTAINERID";
const NETNS: &str = "CNI_NETNS";
pub(crate) const IFNAME: &str = "CNI_IFNAME";
pub(crate) const ARGS: &str = "CNI_ARGS";
const PATH: &str = "CNI_PATH";
const NETNS_OVERRIDE: &str = "CNI_NETNS_OVERRIDE";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Environment>, Error> {
        Environment::read(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    fn refusal(variables: &[(&str, &str)]) -> String {
        let error = read(variables).unwrap_err();
        assert_eq!(error.code(), 4);
        error.to_string()
    }

    #[test]
    fn all_missing_variables_are_named_at_once() {
        let text = refusal(&[(COMMAND, "ADD"), (IFNAME, "")]);
        assert_eq!(text, "ADD needs CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME");
        assert_eq!(refusal(&[(COMMAND, "GC")]), "GC needs CNI_PATH");
    }

    #[test]
    fn invalid_value_is_reported_before_missing_ones() {
        let text = refusal(&[(COMMAND, "ADD"), (CONTAINER_ID, "../etc")]);
        assert!(text.starts_with("CNI_CONTAINERID"), "{text}");
        assert!(refusal(&[(COMMAND, "add")]).contains("CNI_COMMAND"));
    }

    #[test]
    fn verbs_without_a_sandbox_do_not_look_at_its_variables() {
        let dummy = [(CONTAINER_ID, ""), (NETNS, "dummy"), (IFNAME, "not/a/name")];
        for verb in ["VERSION", "STATUS"] {
            let variables = [&[(COMMAND, verb)], &dummy[..]].concat();
            let environment = read(&variables).unwrap().unwrap();
            assert_eq!((environment.netns, environment.names), (None, None));
        }
    }

    #[test]
    fn no_command_means_run_by_hand() {
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&[(COMMAND, "")]).unwrap(), None);
    }

    #[test]
    fn del_needs_no_sandbox() {
        let environment = read(&[
            (COMMAND, "DEL"),
            (CONTAINER_ID, "c"),
            (IFNAME, "eth0"),
            (NETNS, ""),
        ]);
        assert_eq!(environment.unwrap().unwrap().netns, None);
    }
}
