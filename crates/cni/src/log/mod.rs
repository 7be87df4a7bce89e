//! One line of JSON for each invocation, in a file that the configuration or the environment names.
//!
//! A plugin marks where a [`step`] begins, which ends where the next one does. What it was asked is read from the
//! environment as it stands there, so that a request that is refused is told as well. As long as no file is named
//! nothing is written, allocated or asked of the kernel. A log that cannot be written is told on standard error,
//! and is no reason to fail.

mod file;
mod line;
mod settings;

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::ErrorObject;
use crate::json;
use crate::stderr::note;
use line::Line;
use settings::{Level, Settings};

/// What an invocation has to tell once it is over.
#[derive(Debug)]
struct Log {
    plugin: &'static str,
    version: &'static str,
    settings: Settings,
    start: Instant,
    steps: Vec<Step>,
    network: Option<String>,
    /// At [`Level::Debug`].
    config: Option<Value>,
}

/// Something that was begun, and when.
#[derive(Debug, Clone, Copy)]
struct Step {
    name: &'static str,
    way: Way,
    start: Instant,
}

/// Whether a step was taken or taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    There,
    Back,
}

/// A process runs one verb, whose steps are marked wherever they are taken.
static LOG: Mutex<Option<Log>> = Mutex::new(None);

/// Marks the begin of a step, named as what is then done: `make the pair`.
pub fn step(name: &'static str) {
    mark(name, Way::There);
}

/// Marks that a step is undone, named as what is then done: `delete the host link`.
pub(crate) fn undo(name: &'static str) {
    mark(name, Way::Back);
}

fn mark(name: &'static str, way: Way) {
    if let Some(log) = held().as_deref_mut().and_then(Option::as_mut)
        && log.settings.is_on_for(Level::Debug)
    {
        let start = Instant::now();
        log.steps.push(Step { name, way, start });
    }
}

/// From here on time counts. The environment may name a file, into which even what is no request
/// is told.
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

/// The request says where to, what, and of which network, and wins over the environment.
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

/// Writes the line, if this outcome is one to be told.
pub(crate) fn end(outcome: Result<(), &ErrorObject>) {
    let Some(log) = held().as_deref_mut().and_then(Option::take) else {
        return;
    };
    let level = match outcome {
        Ok(()) => Level::Info,
        Err(_) => Level::Error,
    };
    if let Some(path) = log.settings.file_for(level) {
        let line = Line::new(&log, outcome, |name| std::env::var_os(name));
        if let Err(error) = line.to_bytes().and_then(|it| file::append(path, &it)) {
            let path = path.display();
            note(format_args!("write to logFile {path}: {error}"));
        }
    }
}

/// A panic may come from where it is held; then there is nothing to tell.
fn held() -> Option<MutexGuard<'static, Option<Log>>> {
    match LOG.try_lock() {
        Ok(log) => Some(log),
        Err(TryLockError::Poisoned(log)) => Some(log.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Microseconds from `start` to `end`.
fn microseconds(start: Instant, end: Instant) -> u64 {
    let time: Duration = end.saturating_duration_since(start);
    time.as_micros().try_into().unwrap_or(u64::MAX)
}
