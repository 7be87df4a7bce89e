//! Operations on a table: checking, repairing and recreating it, and changing its elements.

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use netlink_packet_netfilter::NetfilterMessageInner;
use netlink_packet_netfilter::nftables::{GenAttribute, ListAttribute, NfTablesMessage};
use nix::errno::Errno;

use crate::count::Counts;
use crate::element::Element;
use crate::error::Error;
use crate::message::{self, Message};
use crate::repair::Repairs;
use crate::reply::Reply;
use crate::socket::{Committed, NetfilterSocket};
use crate::table::{Set, Table};

/// A netlink socket; it belongs to the namespace in which it was opened.
pub struct Connection {
    pub(crate) socket: NetfilterSocket,
}

/// A change to the elements of a table, carried out in one transaction.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// Elements deleted first; they must exist.
    pub delete: Vec<Element>,
    /// Elements added afterwards; their keys must be free.
    pub add: Vec<Element>,
    /// How the counts of the table follow.
    pub counts: Counts,
}

/// What [`Connection::update`] changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Updated {
    /// The table was complete and needed no change.
    Nothing,
    /// Elements, chains or rules changed.
    Rules,
    /// The whole table was recreated: a set or chain existed that could not be repaired. Foreign
    /// elements of that set, and elements that point to foreign chains, are lost.
    Table,
}

impl Updated {
    /// Returns a warning for the log if the table was recreated.
    pub fn warning(self, table: &Table) -> Option<String> {
        (self == Self::Table).then(|| {
            format!(
                "nf_tables table {} was not as ours is made, and was made anew: what others had in \
                 it may be lost; `cnitool reload` brings it back",
                table.name
            )
        })
    }
}

impl Connection {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open() -> Result<Self, Error> {
        let socket = NetfilterSocket::open()?;
        Ok(Self { socket })
    }

    /// Duplicates the socket. After a deletion, closing the last descriptor takes 15 ms; the caller
    /// may leave that to another process.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn handle(&self) -> Result<OwnedFd, Error> {
        self.socket.handle()
    }

    /// Checks that the kernel has `nf_tables` and that this process may use it.
    ///
    /// # Errors
    /// [`Error::Unsupported`]; [`Error::Refused`].
    pub fn probe(&self) -> Result<(), Error> {
        self.generation().map(drop)
    }

    /// Adds `elements` to sets of `table`, which is created or repaired if necessary. Replaces
    /// elements with the same keys, of any owner.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unsupported`]: nothing was added. [`Error::Busy`].
    pub fn put(&self, table: &Table, elements: &[Element]) -> Result<Updated, Error> {
        self.update(table, || {
            let there = elements.iter().map(|it| self.holder(table, it));
            Ok(Change {
                delete: there
                    .filter_map(Result::transpose)
                    .collect::<Result<_, _>>()?,
                add: elements.to_vec(),
                ..Change::default()
            })
        })
    }

    /// Changes elements of `table`, which is created or repaired if necessary.
    ///
    /// `decide` returns the change and may read through this connection. It is called again if
    /// another process changed rules meanwhile. An element that the change deletes and adds
    /// unchanged stays.
    ///
    /// # Errors
    /// Errors of `decide`. [`Error::Refused`], [`Error::Unsupported`] and [`Error::Owned`]: nothing
    /// was changed. [`Error::Busy`].
    pub fn update<E: From<Error>>(
        &self,
        table: &Table,
        mut decide: impl FnMut() -> Result<Change, E>,
    ) -> Result<Updated, E> {
        let (mut updated, mut repaired) = (Updated::Nothing, Updated::Nothing);
        let done = until_current(|| {
            let generation = self.generation()?;
            let repairs = match self.repairs(table)? {
                Repairs::InPlace(repairs) => repairs,
                Repairs::Alone(messages, what) => {
                    if self.commit(table, messages, generation)? == Committed::Yes {
                        repaired = what;
                    }
                    return Ok(Committed::Outdated);
                }
            };
            let change = decide()?;
            let counts = self.count(table, &change)?;
            let Change { delete, add, .. } = &change;
            let (stale, new) = (without(delete, add), without(add, delete));
            let stale = stale.into_iter().map(|it| table.delete_element(it));
            let new = new.into_iter().map(|it| table.add_element(it));
            let messages: Vec<_> = stale.chain(repairs).chain(new).chain(counts).collect();
            updated = match messages.as_slice() {
                [] => repaired,
                _ => repaired.max(Updated::Rules),
            };
            Ok(self.commit(table, messages, generation)?)
        });
        done.map(|()| updated)
    }

    /// Checks by a dry run that the kernel could create `table`; changes nothing.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unsupported`].
    pub fn rehearse(&self, table: &Table) -> Result<(), Error> {
        let generation = self.generation()?;
        let repairs = self.repairs(table)?;
        let rehearsed = self.socket.rehearse(repairs.into_messages(), generation);
        rehearsed.map_err(|error| self.explained(table, error))
    }

    /// Returns the element of `table` with the key of `wanted`, of any owner.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn holder(&self, table: &Table, wanted: &Element) -> Result<Option<Element>, Error> {
        match self.socket.get(table.get_element(wanted)) {
            Err(error) if error.is_not_found() => Ok(None),
            replies => {
                let replies = replies?;
                let mut found = replies.iter().flat_map(|it| read_elements(&wanted.set, it));
                Ok(found.next())
            }
        }
    }

    /// Returns all elements of `set`; empty if the table does not exist.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn elements_of(&self, table: &Table, set: &Set) -> Result<Vec<Element>, Error> {
        match self.socket.dump(table.list_elements(set)) {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            replies => {
                let replies = replies?;
                let elements = replies.iter().flat_map(|it| read_elements(set.name, it));
                // The kernel lists elements twice if the hash table is resized meanwhile.
                let mut told = HashSet::new();
                let elements = elements.filter(|it| told.insert(it.clone()));
                Ok(elements.collect())
            }
        }
    }

    /// Returns all elements of `table` in the order of its sets; empty if the table does not exist.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn elements(&self, table: &Table) -> Result<Vec<Element>, Error> {
        let mut elements = Vec::new();
        for set in table.sets.iter().filter(|it| !it.is_of_counts()) {
            elements.extend(self.elements_of(table, set)?);
        }
        Ok(elements)
    }

    /// Returns messages about what [`Self::update`] would change: chains of `table`, and missing
    /// `elements`.
    ///
    /// Each element is looked up by itself. A list may lack existing elements while another process
    /// changes the set.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn differences(&self, table: &Table, elements: &[Element]) -> Result<Vec<String>, Error> {
        let mut found = self.damage(table)?;
        let missing = self.missing(table, elements)?.into_iter();
        found.extend(missing.map(Element::describe_missing));
        Ok(found)
    }

    /// Returns those of `elements` that `table` lacks or that have another target there. Empty if
    /// the table has to be recreated; [`Self::differences`] reports that.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn missing<'e>(
        &self,
        table: &Table,
        elements: &'e [Element],
    ) -> Result<Vec<&'e Element>, Error> {
        let missing = self.absent(table, elements);
        if missing.as_ref().is_ok_and(Vec::is_empty) || !self.is_foreign(table)? {
            return missing;
        }
        Ok(Vec::new())
    }

    /// The kernel refuses to look for a key in a set of other keys.
    fn absent<'e>(
        &self,
        table: &Table,
        elements: &'e [Element],
    ) -> Result<Vec<&'e Element>, Error> {
        let mut absent = Vec::new();
        for element in elements {
            if self.holder(table, element)?.as_ref() != Some(element) {
                absent.push(element);
            }
        }
        Ok(absent)
    }

    /// Commits `messages`, or compares the generations itself if there are none: without messages
    /// the kernel does not. A list read during another process's change may lack existing elements.
    pub(crate) fn commit(
        &self,
        table: &Table,
        messages: Vec<Message>,
        generation: u32,
    ) -> Result<Committed, Error> {
        if messages.is_empty() && self.generation()? != generation {
            return Ok(Committed::Outdated);
        }
        let committed = self.socket.commit(messages, generation);
        committed.map_err(|error| self.explained(table, error))
    }

    /// Returns [`Error::Owned`] for a table of another program: the kernel refuses changes to it
    /// with EPERM, as it does without the capability.
    fn explained(&self, table: &Table, error: Error) -> Error {
        let is_refused = error.errno() == Some(Errno::EPERM);
        if is_refused && self.is_owned(table).unwrap_or(false) {
            return Error::Owned { table: table.name };
        }
        error
    }

    /// Returns the comments of the chain's rules, in their order.
    pub(crate) fn rules_of(
        &self,
        table: &Table,
        chain: &str,
    ) -> Result<Vec<Option<String>>, Error> {
        let replies = self.socket.dump(table.list_rules(chain))?;
        let rules = replies.into_iter().filter_map(|reply| match reply {
            Reply::Rule(comment) => Some(comment),
            _ => None,
        });
        Ok(rules.collect())
    }

    pub(crate) fn generation(&self) -> Result<u32, Error> {
        let ask = || self.socket.get(message::get_generation());
        let replies = match ask() {
            // Asks twice: a deletion takes this error for an empty table, so it must be true.
            Err(Error::Unsupported { .. }) => ask()?,
            replies => replies?,
        };
        let number = replies.iter().find_map(|reply| match reply {
            Reply::Other(NetfilterMessageInner::NfTables(NfTablesMessage::NewGen(it))) => {
                it.attributes.iter().find_map(|attribute| match attribute {
                    GenAttribute::Id(number) => Some(*number),
                    _ => None,
                })
            }
            _ => None,
        });
        number.ok_or_else(|| Error::Unreadable {
            reason: "no generation in the answer".to_owned(),
        })
    }
}

/// Repeats `attempt` until no other process changed the rules between its reading and writing.
pub(crate) fn until_current<E: From<Error>>(
    mut attempt: impl FnMut() -> Result<Committed, E>,
) -> Result<(), E> {
    for _ in 0..ATTEMPTS {
        if attempt()? == Committed::Yes {
            return Ok(());
        }
    }
    Err(Error::Busy.into())
}

/// Returns the elements of `all` that `others` lacks.
fn without<'a>(all: &'a [Element], others: &[Element]) -> Vec<&'a Element> {
    let others: HashSet<_> = others.iter().collect();
    all.iter().filter(|it| !others.contains(it)).collect()
}

pub(crate) fn read_elements(set: &str, reply: &Reply) -> Vec<Element> {
    let Reply::Elements(elements) = reply else {
        return Vec::new();
    };
    let elements = elements.iter().filter_map(|element| match element {
        ListAttribute::Element(attributes) => Element::read(set, attributes),
        _ => None,
    });
    elements.collect()
}

/// Attempts at a transaction. One of several concurrent processes succeeds each time, so each
/// succeeds in the end. With fifty attempts, one of two hundred ADDs of portmap by sixteen
/// processes gave up in two of seven runs.
const ATTEMPTS: usize = 1000;
