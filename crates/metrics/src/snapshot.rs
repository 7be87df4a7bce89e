//! The metrics of a node at one moment.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use node::Part::{Cache, Configuration, Firewall, Leases, Links};
use node::{Node, Part};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use runtime::Directories;

use crate::addresses::Addresses;
use crate::attachments::Attachments;
use crate::calls::Calls;
use crate::family::Writer;
use crate::files::InvalidFiles;
use crate::lacking::Lacking;
use crate::pods::{Pods, Traffic};
use crate::ports::Ports;
use crate::tables::Tables;
use crate::unread::{LOG, Unread};

/// What a snapshot contains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Which pods have metrics of their own.
    pub pods: Pods,
}

/// The metrics of a node at one moment. A metric is absent if a part that it needs could not be
/// read.
#[derive(Debug)]
pub struct Snapshot {
    addresses: Option<Addresses>,
    attachments: Option<Attachments>,
    lacking: Option<Lacking>,
    ports: Option<Ports>,
    tables: Option<Tables>,
    traffic: Option<Traffic>,
    invalid: InvalidFiles,
    unread: Unread,
    log_files: BTreeSet<PathBuf>,
}

impl Snapshot {
    /// Reads the node in the network namespace of this process. Blocks for some milliseconds, or
    /// longer with thousands of attachments.
    pub fn read(directories: &Directories, options: &Options) -> Self {
        let mut node = Node::counted(directories);
        let unread = Unread::of(std::mem::take(&mut node.unread));
        let is_read = |parts: &[Part]| unread.has_none_of(parts);
        let traces = node.traces();
        let attachments = is_read(&[Configuration, Cache, Links]);
        let elements = attachments && is_read(&[Firewall]);
        let traffic = Traffic::of(&node, &traces, options.pods);
        Self {
            addresses: is_read(&[Configuration, Leases]).then(|| Addresses::of(&node)),
            attachments: attachments.then(|| Attachments::of(&node, &traces)),
            lacking: elements.then(|| Lacking::of(&node, &traces)),
            ports: is_read(&[Configuration, Firewall]).then(|| Ports::of(&node, &traces)),
            tables: is_read(&[Firewall]).then(|| Tables(node.tables.clone())),
            traffic: traffic.filter(|_| is_read(&[Links])),
            invalid: InvalidFiles::of(&node, &unread),
            log_files: log_files(&node),
            unread,
        }
    }

    /// Returns the log files that the configured networks name, in any order.
    pub fn log_files(&self) -> impl Iterator<Item = &Path> {
        self.log_files.iter().map(PathBuf::as_path)
    }

    /// Records that the plugins' log could not be read.
    pub fn log_is_unread(&mut self, reason: impl fmt::Display) {
        self.unread.add(LOG, reason.to_string());
    }

    /// Returns the text that [`crate::encode`] returns for a registry with only this snapshot and
    /// these calls.
    ///
    /// # Errors
    /// As [`crate::encode`]: the text cannot be formatted, which is not expected.
    pub fn into_text(self, calls: &Calls) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        calls.register(&mut registry);
        crate::encode(&registry)
    }

    /// Returns why parts of the node could not be read.
    pub fn unread(&self) -> impl Iterator<Item = &str> {
        self.unread.reasons()
    }
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let writer = &mut Writer(encoder);
        self.unread.encode(writer)?;
        self.invalid.encode(writer)?;
        if let Some(addresses) = &self.addresses {
            addresses.encode(writer)?;
        }
        if let Some(attachments) = &self.attachments {
            attachments.encode(writer)?;
        }
        if let Some(lacking) = &self.lacking {
            lacking.encode(writer)?;
        }
        if let Some(ports) = &self.ports {
            ports.encode(writer)?;
        }
        if let Some(tables) = &self.tables {
            tables.encode(writer)?;
        }
        match &self.traffic {
            Some(traffic) => traffic.encode(writer),
            None => Ok(()),
        }
    }
}

/// Returns the values of the key `logFile` of all plugins that are absolute paths.
fn log_files(node: &Node) -> BTreeSet<PathBuf> {
    let sources = node.configuration.sources();
    let named = sources.filter_map(|it| it.key("logFile")?.as_str());
    let files = named.map(PathBuf::from);
    files.filter(|it| it.is_absolute()).collect()
}
