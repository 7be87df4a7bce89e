//! `nf_tables` over netlink, without external programs.
//!
//! A [`Table`] describes sets and chains. The rules of the chains look packets up in the sets.
//! [`Connection::update`] creates or repairs the table and adds [`Element`]s to its sets. For each
//! element, the caller names an owner, such as the attachment of a container to a network. The
//! kernel stores this name as the element's comment, and [`Connection::delete`] finds elements by
//! it. Each [`Change`] is one transaction.
//!
//! A change does not affect the translation of connections that the kernel already tracks, until
//! the caller deletes their conntrack entries by [`Connection::delete_tracked`]. In tables of other
//! programs, this crate adds only a few rules, which are the same for all owners, and the chains
//! for them if they do not exist ([`RequiredRules`]). There it deletes only rules that accept
//! packets from or to one address ([`Connection::delete_accept_rules`]). A caller can copy the tables
//! of all programs to another namespace ([`Ruleset`]) and test there what the rules do to packets.
//!
//! This crate knows tables, sets and rules, but not their purpose.

mod accept_rules;
mod change;
mod comment;
mod connection;
mod conntrack;
mod copy;
mod count;
mod deletion;
mod element;
mod elements;
mod error;
mod exchange;
mod expression;
mod field;
#[cfg(fuzzing)]
pub mod fuzzing;
mod host_port;
mod kernel_chain;
mod limit;
mod message;
mod notification;
mod owned;
mod ranges;
mod raw;
mod register;
mod repair;
mod required;
mod rule;
mod rule_place;
mod ruleset;
mod table;
mod trace;
mod tracked;
mod update;
mod watch;

use netlink::attributes;

pub use change::{Change, Counts, Updated};
pub use connection::Connection;
pub use copy::Copied;
pub use element::{Element, Value};
pub use error::{Error, supported};
pub use expression::{Operator, SourcePort};
pub use field::Field;
pub use host_port::{HostPort, Protocol};
pub use kernel_chain::KernelChain;
pub use limit::Limit;
pub(crate) use message::Message;
pub use netlink::IpVersion;
pub use notification::{Deleted, Deletion, Notification};
pub use owned::OwnedTable;
pub use ranges::ranges;
pub use required::{Comparison, RequiredChain, RequiredRule, RequiredRules};
pub use rule::Rule;
pub use ruleset::{RulePlace, Ruleset};
pub use table::{
    BaseChain, Chain, ChainKind, Family, Hook, Set, Table, TargetType, Type, base_chain_of,
    chain_of_base,
};
pub use trace::{EndVerdict, Ended, Tracer};
pub use watch::Watch;
