//! One line of JSON for each invocation, in a file that the configuration or the environment names.
//!
//! A plugin marks the start of each [`step`]; a step ends when the next one starts. The log reads
//! the request from the environment, so it also contains rejected requests. Without a log file,
//! this module writes and allocates nothing and makes no system call. If the log cannot be written,
//! the plugin reports that on standard error and does not fail.

mod file;
mod line;
mod settings;

use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use serde_json::Value;

use crate::{ErrorObject, json, note};
use line::{Log, Step};
use settings::{Level, Settings};

/// The log of this process. It is global so that any module can mark a step; a process runs only
/// one verb.
static LOG: Mutex<Option<Log>> = Mutex::new(None);

/// Marks the start of a step in the log. `name` is its action, such as `lease addresses`.
pub fn step(name: &'static str) {
    mark("step", name);
}

/// Marks the start of a rollback step in the log. `name` is its action, such as
/// `release the lease`.
pub(crate) fn undo(name: &'static str) {
    mark("undo", name);
}

fn mark(key: &'static str, name: &'static str) {
    if let Some(log) = held().as_deref_mut().and_then(Option::as_mut)
        && log.settings.is_on_for(Level::Debug)
    {
        if log.steps.is_empty() {
            log.steps.push(Step {
                key: "step",
                name: "read the request",
                start: log.start,
            });
        }
        let start = Instant::now();
        log.steps.push(Step { key, name, start });
    }
}

/// Starts the log of this process: starts its clock, and takes the path of the log file and the
/// level from the environment. This happens before the request is parsed, so even an invalid
/// request is logged.
pub(crate) fn begin(plugin: &'static str) {
    if let Some(mut log) = held() {
        *log = Some(Log {
            plugin,
            settings: Settings::of_environment(|name| std::env::var_os(name)),
            start: Instant::now(),
            steps: Vec::new(),
            network: None,
            config: None,
        });
    }
}

/// Takes the path of the log file, the level and the network's name from the configuration. These
/// values take precedence over the environment.
pub(crate) fn configure(config: &Value) {
    let mut held = held();
    let Some(log) = held.as_deref_mut().and_then(Option::as_mut) else {
        return;
    };
    log.settings.configure(config);
    if log.settings.is_on_for(Level::Error) {
        let name = config.as_object().and_then(|it| json::value(it, "name"));
        log.network = name.and_then(Value::as_str).map(str::to_owned);
    }
    if log.settings.is_on_for(Level::Debug) {
        log.config = Some(line::without_secrets(config));
    }
}

/// Writes the log line. With the log level `error`, writes it only if `outcome` is an error.
pub(crate) fn end(outcome: Result<(), &ErrorObject>) {
    let Some(log) = held().as_deref_mut().and_then(Option::take) else {
        return;
    };
    if let Some(path) = log.settings.file_for(Level::of(outcome)) {
        let line = line::line(&log, outcome, |name| std::env::var_os(name));
        if let Err(error) = line.and_then(|it| file::append(path, &it)) {
            let path = path.display();
            note!("write to logFile {path}: {error}");
        }
    }
}

/// Locks the log without waiting. Returns `None` if the lock is held. This happens if a function of
/// this module panics while it holds the lock: the panic hook calls [`end`], which then logs
/// nothing.
fn held() -> Option<MutexGuard<'static, Option<Log>>> {
    LOG.try_lock().ok()
}
