//! `nf_tables` over netlink, without any program.
//!
//! A [`Table`] of ours is described once and for all: its sets, and chains whose rules look
//! packets up in them. [`Connection::update`] finds it complete, or makes or repairs it, and adds
//! [`Element`]s, each of which bears its owner as a comment; [`Connection::delete`] finds them
//! by it. Every change is one transaction: all of it happens or nothing. What the kernel tracks
//! of connections outlives such a change until [`Connection::forget`] is told to. Tables of others
//! are read, and never written: to try what they do to packets, a copy of all is made in another
//! namespace ([`Ruleset`]).
//!
//! This crate knows what a table, a set and a rule are, and not what they are for.

mod connection;
mod conntrack;
mod deletion;
mod element;
mod error;
mod expression;
mod field;
mod held;
mod limit;
mod message;
mod raw;
mod repair;
mod reply;
mod rule;
mod ruleset;
mod socket;
mod table;
mod trace;
mod tracked;
mod watch;

pub use connection::{Change, Connection, Updated};
pub use conntrack::Destination;
pub use element::{Element, Value};
pub use error::Error;
pub use field::Field;
pub use held::HeldChain;
pub use limit::Limit;
pub use rule::{IpVersion, Rule, SourcePort};
pub use ruleset::{RulePlace, Ruleset};
pub use table::{Chain, ChainKind, Entry, Family, Hook, Set, Table, TargetType, Type};
pub use trace::{EndVerdict, Ended, Tracer};
pub use watch::Watch;
