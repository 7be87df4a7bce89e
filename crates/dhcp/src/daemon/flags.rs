//! The daemon's flags, those of the Go plugin, in the spelling of Go's package `flag`: `-name value`,
//! `-name=value`, and with two hyphens.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use attach::OwnerFiles;

use crate::config::SOCKET;
use crate::record::directory;

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

    /// Parses the words after `daemon`.
    ///
    /// # Errors
    /// A flag is unknown, or its value is missing or invalid.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut flags = Self {
            pidfile: None,
            prefix: String::new(),
            socket: SOCKET.into(),
            broadcast: false,
            timing: Timing {
                timeout: Duration::from_secs(10),
                resend_max: Duration::from_secs(62),
                resend_timeout: Duration::from_secs(208),
            },
        };
        let mut socket = SOCKET.to_owned();
        while let Some(word) = words.next() {
            let flag = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
            let flag = flag.with_context(|| format!("{word:?} is no flag"))?;
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None if flag == "broadcast" => (flag, Some("true".to_owned())),
                None => (flag, words.next()),
            };
            let value = value.with_context(|| format!("-{name} needs a value"))?;
            let timing = &mut flags.timing;
            match name {
                "pidfile" => flags.pidfile = pidfile(value)?,
                "hostprefix" => flags.prefix = value,
                "socketpath" if value.is_empty() => {}
                "socketpath" => socket = value,
                "broadcast" => flags.broadcast = value.parse().context("read -broadcast")?,
                "timeout" => timing.timeout = duration(name, &value)?,
                "resendmax" => timing.resend_max = duration(name, &value)?,
                "resendtimeout" => timing.resend_timeout = duration(name, &value)?,
                _ => bail!("there is no flag -{name}"),
            }
        }
        flags.socket = format!("{}{socket}", flags.prefix).into();
        Ok(flags)
    }
}

fn pidfile(value: String) -> anyhow::Result<Option<PathBuf>> {
    if value.is_empty() {
        return Ok(None);
    }
    let is_absolute = value.starts_with('/');
    ensure!(is_absolute, "-pidfile {value:?} is not an absolute path");
    Ok(Some(value.into()))
}

fn duration(name: &str, value: &str) -> anyhow::Result<Duration> {
    let duration = humantime::parse_duration(value);
    let duration = duration.with_context(|| format!("read -{name} {value:?}"))?;
    ensure!(
        !duration.is_zero(),
        "-{name} is 0: give a duration, such as 10s"
    );
    Ok(duration)
}

pub(crate) const USAGE: &str = "\
flags of dhcp daemon:
  -pidfile PATH            file for the process ID
  -hostprefix PATH         the host's root directory
  -socketpath PATH         the socket, /run/cni/dhcp.sock by default
  -broadcast               servers answer to all hosts
  -timeout DURATION        wait for the answer to one message, 10s by default
  -resendmax DURATION      longest wait before a message is repeated, 62s by default
  -resendtimeout DURATION  when an ADD gives up, 208s by default";

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
