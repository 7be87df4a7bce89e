//! The daemon's flags, those of the Go plugin, in the spelling of Go's package `flag`: `-name value`,
//! `-name=value`, and with two hyphens.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use attach::OwnerFiles;
use cni::keys;

use crate::config::SOCKET;
use crate::record::directory;
use crate::wire::Asked;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flags {
    /// File for the process ID.
    pub pidfile: Option<PathBuf>,
    /// Path of the host's root directory; empty if it is the daemon's own.
    pub prefix: String,
    /// The socket, with the prefix.
    pub socket: PathBuf,
    /// Whether servers shall send their answers to all hosts.
    pub broadcast: bool,
    /// When to repeat messages, and when to give up.
    pub timing: Timing,
}

/// When to repeat messages, and when to give up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timing {
    /// Longest wait for the answer to one message.
    pub timeout: Duration,
    /// Longest wait before a message is repeated.
    pub resend_max: Duration,
    /// When an ADD gives up.
    pub resend_timeout: Duration,
}

impl Flags {
    /// Returns the directory of the daemon's records.
    pub(crate) fn records(&self) -> OwnerFiles {
        directory(&self.socket)
    }

    /// Returns where the daemon finds a path of the host.
    pub(crate) fn on_host(&self, path: &Path) -> PathBuf {
        format!("{}{}", self.prefix, path.display()).into()
    }

    /// Returns `asked` with the path at which the daemon finds the sandbox.
    pub(crate) fn here(&self, asked: Asked) -> Asked {
        Asked {
            netns: self.on_host(&asked.netns),
            ..asked
        }
    }

    /// Parses the words after `daemon`.
    ///
    /// # Errors
    /// A flag is unknown, or its value is missing or invalid.
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut given = given(words)?;
        let mut take = |flag| given.remove(flag).unwrap_or_default();
        let pidfile = Some(take("pidfile")).filter(|it| !it.is_empty());
        let pidfile = pidfile.map(|it| keys::absolute(&it, "", "-pidfile"));
        let prefix = take("hostprefix");
        let socket = keys::absolute(&take("socketpath"), SOCKET, "-socketpath")?;
        let broadcast = take("broadcast");
        let mut duration = |flag, seconds| {
            let default = Duration::from_secs(seconds);
            let duration = keys::duration(&take(flag), default, flag)?;
            ensure!(!duration.is_zero(), "{flag}: give a duration, such as 10s");
            Ok(duration)
        };
        let timing = Timing {
            timeout: duration("timeout", 10)?,
            resend_max: duration("resendmax", 62)?,
            resend_timeout: duration("resendtimeout", 208)?,
        };
        let flags = Self {
            pidfile: pidfile.transpose()?,
            socket: format!("{prefix}{}", socket.display()).into(),
            prefix,
            broadcast: !broadcast.is_empty() && broadcast.parse().context("broadcast")?,
            timing,
        };
        match given.into_keys().next() {
            Some(flag) => bail!("there is no flag -{flag}"),
            None => Ok(flags),
        }
    }
}

/// Returns the values of the flags by their names.
fn given(mut words: impl Iterator<Item = String>) -> anyhow::Result<HashMap<String, String>> {
    let mut given = HashMap::new();
    while let Some(word) = words.next() {
        let flag = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
        let flag = flag.with_context(|| format!("{word:?} is no flag"))?;
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None if flag == "broadcast" => (flag, Some("true".to_owned())),
            None => (flag, words.next()),
        };
        let value = value.with_context(|| format!("-{name} needs a value"))?;
        given.insert(name.to_owned(), value);
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> anyhow::Result<Flags> {
        Flags::parse(words.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn flags_are_spelled_as_in_go() {
        let flags = parse("-hostprefix /host --socketpath=/run/d.sock -broadcast -timeout 2s");
        let flags = flags.unwrap();
        assert_eq!(flags.socket.to_str(), Some("/host/run/d.sock"));
        assert!(flags.broadcast);
        assert_eq!(flags.timing.timeout, Duration::from_secs(2));
        let defaults = parse("-broadcast=false -pidfile=").unwrap();
        assert_eq!(defaults, parse("").unwrap());
        assert_eq!(defaults.socket.to_str(), Some(SOCKET));
    }

    #[test]
    fn wrong_flags_are_refused() {
        for words in [
            "daemon",
            "-pidfile",
            "-pidfile x",
            "-timeout 0s",
            "-timeout x",
            "-x=1",
        ] {
            parse(words).unwrap_err();
        }
    }
}
