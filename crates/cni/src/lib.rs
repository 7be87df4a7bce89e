//! The CNI protocol: a request in, a result or an error out.
//!
//! An executable passes its [`Plugin`] to [`run`], which reads the environment and standard input,
//! calls one verb and writes the outcome. [`delegate`] is the other side of the protocol: it calls
//! a plugin.
//!
//! This crate changes no interfaces, routes or namespaces. It only reads and writes their names,
//! paths and addresses as the specification spells them.
//!
//! Source: CNI specification 1.1.0, SPEC.md and CONVENTIONS.md. "The Go plugins" in the comments
//! are those of containernetworking/plugins.

mod args;
mod attachment;
pub mod delegate;
mod dispatch;
mod environment;
mod error;
pub mod files;
mod format;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod json;
pub mod keys;
mod log;
mod network;
pub mod page;
pub mod process;
mod repeated;
mod request;
pub mod result;
mod shell;
mod stderr;
mod suite;
mod undo;
mod verb;
mod version;
mod when_full;

pub use args::CniArgs;
pub use attachment::{Attachment, ContainerId, InterfaceName, NetworkName, hex, is_hex};
pub use dispatch::{Answer, Answered, Plugin, run};
pub use environment::SearchPath;
pub use error::{Error, ErrorObject, all};
pub use format::FirstFormat;
pub use log::step;
pub use network::{COMMON_KEYS, Document, Network};
pub use request::{AddRequest, CheckRequest, DelRequest, GcRequest, StatusRequest};
pub use result::AddResult;
pub use shell::{del_command, quoted};
pub use stderr::{GOING_ON, note, note_failure, or_note};
pub use suite::{Role, role, suite};
pub use undo::Undo;
pub use verb::Verb;
pub use version::SpecVersion;
pub use when_full::WhenFull;

/// Memory allocator of all executables. It replaces the allocator of musl, which returns every
/// freed page to the kernel at once: an ADD of bridge made 350 system calls for that.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
