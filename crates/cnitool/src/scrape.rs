//! `metrics`: prints the metrics of the node once.

use std::env;
use std::path::PathBuf;

use cni::note;
use metrics::Exporter;
use runtime::Directories;

/// Returns the metrics in the text format of `OpenMetrics`. Reports on standard error which parts
/// of the node cannot be read.
///
/// # Errors
/// The text cannot be formatted, which is not expected: see [`Exporter::text`].
pub fn scrape(directories: &Directories, pods: Option<usize>) -> anyhow::Result<String> {
    let of_environment = env::var_os(LOG_FILE).filter(|it| !it.is_empty());
    let files = of_environment.map(PathBuf::from);
    let (text, unread) = Exporter::default().text(directories, pods, files)?;
    for reason in unread {
        note!("cnitool: not read: {reason}");
    }
    Ok(text)
}

/// The environment variable that names a log file of the plugins. The files that the configuration
/// names are read, too.
const LOG_FILE: &str = "CNI_LOG_FILE";
