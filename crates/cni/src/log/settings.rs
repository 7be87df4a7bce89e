//! Log file and level: `logFile` and `logLevel`, `CNI_LOG_FILE` and `CNI_LOG_LEVEL`.
//!
//! The plugin reports an invalid value on standard error, but no verb fails because of its log. A
//! path that is not absolute switches the log off; an invalid level counts as `info`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::de::{self, IntoDeserializer as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{json, note};

/// Which invocations the log contains, and with which data. Each level includes the previous one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Failed invocations only.
    Error,
    /// Every invocation.
    #[default]
    Info,
    /// Every invocation with its steps and configuration.
    Debug,
}

impl Level {
    /// Returns [`Self::Error`] for a failed invocation, and [`Self::Info`] for a successful one.
    pub fn of<E>(outcome: Result<(), E>) -> Self {
        outcome.map_or(Self::Error, |()| Self::Info)
    }
}

/// File and level of the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    file: Option<PathBuf>,
    level: Level,
}

impl Settings {
    pub fn of_environment(lookup: impl Fn(&str) -> Option<OsString>) -> Self {
        let mut settings = Self::default();
        let text = |name: &str| lookup(name).filter(|text| !text.is_empty());
        settings.apply([FILE, LEVEL], text);
        settings
    }

    /// Applies the keys of the configuration, which take precedence over the environment. An empty
    /// `logFile` switches the log off.
    pub fn configure(&mut self, config: &Value) {
        let config = config.as_object();
        let text = |key: &str| match config.and_then(|config| json::value(config, key))? {
            Value::String(text) => Some(text.into()),
            other => Some(other.to_string().into()),
        };
        self.apply(["logFile", "logLevel"], text);
    }

    fn apply(&mut self, [file, level]: [&str; 2], text: impl Fn(&str) -> Option<OsString>) {
        if let Some(path) = text(file) {
            self.file = absolute(file, path.into());
        }
        if let Some(text) = text(level) {
            self.level = parsed(level, &text.to_string_lossy());
        }
    }

    /// Returns the log file if the log includes invocations of `level`. Returns `None` if it does
    /// not, or if no log file is set.
    pub fn file_for(&self, level: Level) -> Option<&Path> {
        self.file.as_deref().filter(|_| level <= self.level)
    }

    pub fn is_on_for(&self, level: Level) -> bool {
        self.file_for(level).is_some()
    }
}

fn absolute(key: &str, path: PathBuf) -> Option<PathBuf> {
    if !path.is_absolute() && !path.as_os_str().is_empty() {
        let path = path.display();
        note!("{key}: {path} is no absolute path; nothing is logged");
    }
    Some(path).filter(|path| path.is_absolute())
}

fn parsed(key: &str, text: &str) -> Level {
    let level = Level::deserialize(text.to_ascii_lowercase().into_deserializer());
    level.unwrap_or_else(|_: de::value::Error| {
        note!("{key}: {text:?} is none of error, info, debug; info is what is logged");
        Level::default()
    })
}

const FILE: &str = "CNI_LOG_FILE";
const LEVEL: &str = "CNI_LOG_LEVEL";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(variables: &[(&str, &str)], config: &Value) -> Settings {
        let mut settings = Settings::of_environment(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        });
        settings.configure(config);
        settings
    }

    fn to(file: &str, level: Level) -> Settings {
        let file = Some(file.into());
        Settings { file, level }
    }

    #[test]
    fn level_of_the_environment_counts_for_the_file_of_the_configuration() {
        let config = json!({"logFile": "/c"});
        assert_eq!(
            settings(&[(LEVEL, "debug")], &config),
            to("/c", Level::Debug)
        );
        assert!(!settings(&[(LEVEL, "debug")], &json!({})).is_on_for(Level::Error));
    }

    #[test]
    fn configuration_wins_over_the_environment_key_by_key() {
        let environment = [(FILE, "/e"), (LEVEL, "debug")];
        for (config, expected) in [
            (json!({}), to("/e", Level::Debug)),
            (json!({"logfile": "/c"}), to("/c", Level::Debug)),
            (json!({"logLevel": "error"}), to("/e", Level::Error)),
        ] {
            assert_eq!(settings(&environment, &config), expected, "{config}");
        }
        let off = settings(&environment, &json!({"logFile": ""}));
        assert!(!off.is_on_for(Level::Error));
    }

    #[test]
    fn what_makes_no_sense_logs_nothing_or_at_info() {
        for config in [json!({"logFile": 1}), json!({"logFile": "a/b"}), json!({})] {
            assert!(!settings(&[(FILE, "")], &config).is_on_for(Level::Error));
            assert!(!settings(&[(FILE, "a")], &config).is_on_for(Level::Error));
        }
        for level in [json!("loud"), json!(3)] {
            let config = json!({"logFile": "/c", "logLevel": level});
            assert_eq!(settings(&[], &config), to("/c", Level::Info));
        }
    }

    #[test]
    fn a_level_logs_what_earlier_levels_do() {
        let at = |level| to("/c", level);
        assert!(at(Level::Error).is_on_for(Level::Error));
        assert!(!at(Level::Error).is_on_for(Level::Info));
        assert!(at(Level::Debug).is_on_for(Level::Info));
    }
}
