//! Counts what the attachments of a node have and use, as metrics in the text format of
//! `OpenMetrics`.
//!
//! A [`Snapshot`] reads a node once, and [`Calls`] counts the lines of the plugins' log. Both block
//! the caller, and neither calls a plugin. This crate does not know who asks for the metrics, or
//! when. An agent registers [`Latest`] in the registry of its own metrics, and sets a new snapshot
//! for each request.
//!
//! ```no_run
//! use metrics::{Calls, Follower, Latest, Pods, Snapshot};
//! use prometheus_client::registry::Registry;
//!
//! # fn serve(directories: &runtime::Directories) -> Result<String, std::fmt::Error> {
//! let (latest, calls, mut registry) = (Latest::default(), Calls::default(), Registry::default());
//! registry.register_collector(Box::new(latest.clone()));
//! calls.register(&mut registry);
//! let mut log = Follower::default();
//! // For each request:
//! calls.follow(&mut log, "/var/log/cni.log".as_ref()).ok();
//! latest.set(Snapshot::read(directories, Pods::default()));
//! metrics::encode(&registry)
//! # }
//! ```

mod addresses;
mod attachments;
mod calls;
mod family;
mod files;
mod follower;
mod label;
mod lacking;
mod latest;
mod log_file;
mod pods;
mod ports;
mod rotated;
mod snapshot;
mod tables;
mod unread;

use std::fmt;

use prometheus_client::registry::Registry;

pub use self::calls::Calls;
pub use self::follower::Follower;
pub use self::latest::Latest;
pub use self::pods::Pods;
pub use self::snapshot::Snapshot;

/// Returns all metrics of the registry in the text format of `OpenMetrics`, which ends with
/// `# EOF`.
///
/// # Errors
/// A collector in the registry cannot encode its metrics. The collectors of this crate always can.
pub fn encode(registry: &Registry) -> Result<String, fmt::Error> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)?;
    Ok(text)
}
