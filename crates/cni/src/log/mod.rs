//! One line of JSON for each invocation, in a file that the configuration or the environment names.
//!
//! A plugin marks the start of each [`step`]; the next one ends it. The module reads the request
//! from the environment, so it logs rejected requests as well. Without a file it writes and
//! allocates nothing and makes no system call. A log that cannot be written causes a message on
//! standard error and no failure.

mod file;
mod invocation;
mod line;
mod settings;

use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use serde_json::Value;

use crate::error::ErrorObject;
use crate::json;
use crate::stderr::note;
use invocation::{Log, Step};
use settings::{Level, Settings};

/// Log of the process, which runs one verb; any module may mark a step.
static LOG: Mutex<Option<Log>> = Mutex::new(None);

/// Marks the start of a step, named by its action: `make the pair`.
pub fn step(name: &'static str) {
    mark("step", name);
}

/// Marks the start of a rollback step, named by its action: `delete the host link`.
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

/// Starts the time measurement. If the environment names a file, even an invalid request is logged.
pub(crate) fn begin(plugin: &'static str, version: &'static str) {
    if let Some(mut log) = held() {
        *log = Some(Log {
            plugin,
            version,
            settings: Settings::of_environment(|name| std::env::var_os(name)),
            start: Instant::now(),
            steps: Vec::new(),
            network: None,
            config: None,
        });
    }
}

/// Reads the file, level and network from the request, which takes precedence over the environment.
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

/// Writes the line if the level includes this outcome.
pub(crate) fn end(outcome: Result<(), &ErrorObject>) {
    let Some(log) = held().as_deref_mut().and_then(Option::take) else {
        return;
    };
    if let Some(path) = log.settings.file_for(Level::of(outcome)) {
        let line = line::line(&log, outcome, |name| std::env::var_os(name));
        if let Err(error) = line.and_then(|it| file::append(path, &it)) {
            let path = path.display();
            note(format_args!("write to logFile {path}: {error}"));
        }
    }
}

/// Returns `None` if a panic comes from a function that holds the lock; nothing is logged then.
fn held() -> Option<MutexGuard<'static, Option<Log>>> {
    LOG.try_lock().ok()
}
