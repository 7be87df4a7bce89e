//! The data of an invocation that the log needs.

use std::time::Instant;

use serde_json::Value;

use super::settings::Settings;

/// Data of an invocation. The log line is written when the invocation ends.
#[derive(Debug)]
pub(super) struct Log {
    pub plugin: &'static str,
    pub settings: Settings,
    pub start: Instant,
    pub steps: Vec<Step>,
    pub network: Option<String>,
    /// The configuration, at `Level::Debug` only.
    pub config: Option<Value>,
}

/// A step and the time at which it started.
#[derive(Debug)]
pub(super) struct Step {
    /// `step`, or `undo` for a step of the rollback.
    pub key: &'static str,
    pub name: &'static str,
    pub start: Instant,
}
