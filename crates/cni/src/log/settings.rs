//! Log file and level: `logFile` and `logLevel`, `CNI_LOG_FILE` and `CNI_LOG_LEVEL`.
//!
//! An invalid value causes a message and switches the log off; no verb fails because of its log.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;
use serde_json::Value;

use crate::json;
use crate::stderr::note;

/// Amount of logging; each level includes those before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Failures.
    Error,
    /// Every invocation.
    #[default]
    Info,
    /// Every invocation with its steps and configuration.
    Debug,
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "error" => Ok(Self::Error),
            "info" => Ok(Self::Info),
            "debug" => Ok(Self::Debug),
            _ => Err(format!("{text:?} is none of error, info, debug")),
        }
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
        let text = |name| lookup(name).filter(|text| !text.is_empty());
        let level = text(LEVEL).map(|text| parsed(LEVEL, &text.to_string_lossy()));
        Self {
            file: text(FILE).and_then(|path| absolute(FILE, path.into())),
            level: level.unwrap_or_default(),
        }
    }

    /// Applies the configuration, which takes precedence. An empty `logFile` switches the log off.
    pub fn configure(&mut self, config: &Value) {
        let config = config.as_object();
        let value = |key| config.and_then(|config| json::value(config, key));
        match value("logFile") {
            None => {}
            Some(Value::String(path)) if path.is_empty() => self.file = None,
            Some(Value::String(path)) => self.file = absolute("logFile", path.into()),
            Some(other) => {
                self.file = None;
                note(format_args!(
                    "logFile: {other} is no path; nothing is logged"
                ));
            }
        }
        match value("logLevel") {
            None => {}
            Some(Value::String(level)) => self.level = parsed("logLevel", level),
            Some(other) => self.level = parsed("logLevel", &other.to_string()),
        }
    }

    /// Returns the file for events of this level; `None` if they are not logged.
    pub fn file_for(&self, level: Level) -> Option<&Path> {
        self.file.as_deref().filter(|_| level <= self.level)
    }

    pub fn is_on_for(&self, level: Level) -> bool {
        self.file_for(level).is_some()
    }
}

fn absolute(key: &str, path: PathBuf) -> Option<PathBuf> {
    if path.is_absolute() {
        return Some(path);
    }
    note(format_args!(
        "{key}: {} is no absolute path; nothing is logged",
        path.display()
    ));
    None
}

fn parsed(key: &str, text: &str) -> Level {
    text.parse().unwrap_or_else(|reason| {
        note(format_args!("{key}: {reason}; info is what is logged"));
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
