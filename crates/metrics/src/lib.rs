//! Counts what the attachments of a node have and use, as metrics in the text format of
//! `OpenMetrics`.
//!
//! An [`Exporter`] reads a node and the plugins' log. It blocks the caller, and calls no plugin.
//! This crate does not know who asks for the metrics, or when. An agent gives it a registry that
//! has metrics of its own.

mod addresses;
mod attachments;
mod calls;
mod exporter;
mod family;
mod follower;
mod label;
mod lacking;
mod log_file;
mod pods;
mod ports;
mod rotated;
mod snapshot;
mod tables;

pub use self::exporter::Exporter;
pub use self::family::{Family, Labels, Latest, Metric};
pub use self::label::Text;
pub use self::pods::MOST_PODS;
