//! An invocation, as far as the log knows it.

use std::time::Instant;

use serde_json::Value;

use super::settings::Settings;

/// Data of an invocation, written when it ends.
#[derive(Debug)]
pub(super) struct Log {
    pub plugin: &'static str,
    pub version: &'static str,
    pub settings: Settings,
    pub start: Instant,
    pub steps: Vec<Step>,
    pub network: Option<String>,
    /// The configuration, at `Level::Debug` only.
    pub config: Option<Value>,
}

/// A step and its start.
#[derive(Debug)]
pub(super) struct Step {
    /// `step`, or `undo` for a step of the rollback.
    pub key: &'static str,
    pub name: &'static str,
    pub start: Instant,
}
