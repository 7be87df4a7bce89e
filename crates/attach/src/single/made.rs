//! What an ADD has made.

use std::cell::{Cell, RefCell};

use netlink::{Connection, Error, Link};

use crate::Witness;
use crate::rollback::Leased;

/// What this ADD has made. The rollback removes nothing else, because it may be a concurrent ADD's.
#[derive(Default)]
pub(super) struct Made {
    pub link: RefCell<Option<MadeLink>>,
    pub lease: Leased,
    /// Whether this ADD has written, or is about to write, the record of the sandbox.
    pub record: Cell<bool>,
    /// The record that it replaces, if that one's sandbox may exist.
    pub earlier: RefCell<Option<Witness>>,
}

/// How the rollback finds the link.
pub(super) enum MadeLink {
    /// The kernel made a link with this name.
    Named(String),
    /// The kernel reported an error, but may have made a link with this name. If it has an alias, it is
    /// a concurrent ADD's.
    Perhaps(String),
    /// The link has this index, whether or not it has been renamed.
    Numbered(u32),
}

impl Made {
    /// Notes the name of the link that the rollback has to delete, unless the error is that another ADD
    /// made it: after any other error, the kernel may have made it.
    pub fn note(&self, name: &str, made: Result<(), Error>) -> Result<(), Error> {
        let name = name.to_owned();
        self.link.replace(match &made {
            Ok(()) => Some(MadeLink::Named(name)),
            Err(error) if error.is_already_exists() => None,
            Err(_) => Some(MadeLink::Perhaps(name)),
        });
        made
    }
}

impl MadeLink {
    /// Returns the link; `None` if it does not exist.
    pub fn find(&self, sandbox: &Connection) -> Result<Option<Link>, Error> {
        match self {
            Self::Named(name) => sandbox.find_link(name),
            Self::Perhaps(name) => {
                let found = sandbox.find_link(name)?;
                Ok(found.filter(|it| it.alias.is_none()))
            }
            Self::Numbered(index) => sandbox.find_link_by_index(*index),
        }
    }
}
