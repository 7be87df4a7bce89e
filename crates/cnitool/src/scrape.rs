//! `metrics`: prints the metrics of the node once.

use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;

use cni::note;
use metrics::{Calls, Pods, Snapshot};
use runtime::Directories;

/// Returns the metrics in the text format of `OpenMetrics`. Reports on standard error which parts
/// of the node cannot be read.
///
/// # Errors
/// The text cannot be formatted, which is not expected: see [`Snapshot::into_text`].
pub fn scrape(directories: &Directories, pods: Pods) -> anyhow::Result<String> {
    let mut snapshot = Snapshot::read(directories, pods);
    let of_environment = env::var_os(LOG_FILE).filter(|it| !it.is_empty());
    let mut files: BTreeSet<PathBuf> = of_environment.map(PathBuf::from).into_iter().collect();
    files.extend(snapshot.log_files().map(ToOwned::to_owned));
    let calls = Calls::default();
    for file in &files {
        if let Err(error) = calls.read(file) {
            snapshot.log_is_unread(format_args!("{error:#}"));
        }
    }
    for reason in snapshot.unread() {
        note(format_args!("cnitool: not read: {reason}"));
    }
    Ok(snapshot.into_text(&calls)?)
}

/// The environment variable that names a log file of the plugins. The files that the configuration
/// names are read, too.
const LOG_FILE: &str = "CNI_LOG_FILE";
