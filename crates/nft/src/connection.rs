//! What is done with a table: found complete or repaired, added to, deleted from.

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use netlink_packet_netfilter::NetfilterMessageInner;
use netlink_packet_netfilter::nftables::{GenAttribute, ListAttribute, NfTablesMessage};
use nix::errno::Errno;

use crate::element::Element;
use crate::error::Error;
use crate::message::{self, Message};
use crate::repair::Repairs;
use crate::reply::Reply;
use crate::socket::{Committed, NetfilterSocket};
use crate::table::{Set, Table};

/// A netlink socket in the namespace in which it was opened.
pub struct Connection {
    pub(crate) socket: NetfilterSocket,
}

/// What becomes of the elements of a table, in one transaction.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// Deleted first; they have to be there.
    pub delete: Vec<Element>,
    /// Added then; their keys have to be free.
    pub add: Vec<Element>,
}

/// What [`Connection::update`] found to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Updated {
    /// All was as it shall be.
    Nothing,
    /// Elements, chains or rules.
    Rules,
    /// All of it: a set or a chain was there that cannot be made what it shall be. What others
    /// had in that set, or leading to chains of their own, is lost.
    Table,
}

impl Updated {
    /// What whoever reads the log has to know of it.
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

    /// Another handle of the socket. After a deletion the last one takes 15 ms to close, which
    /// may be left to another process.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn handle(&self) -> Result<OwnedFd, Error> {
        self.socket.handle()
    }

    /// Asks whether the kernel has `nf_tables` and lets us use it.
    ///
    /// # Errors
    /// [`Error::Unsupported`]; [`Error::Refused`].
    pub fn probe(&self) -> Result<(), Error> {
        self.generation().map(drop)
    }

    /// Puts `elements` into sets of `table`, which is made or repaired where it is not as it
    /// shall be; elements with the same keys, whosever they are, make room.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unsupported`], in which case nothing is added;
    /// [`Error::Busy`].
    pub fn put(&self, table: &Table, elements: &[Element]) -> Result<Updated, Error> {
        self.update(table, || {
            let there = elements.iter().map(|it| self.holder(table, it));
            Ok(Change {
                delete: there
                    .filter_map(Result::transpose)
                    .collect::<Result<_, _>>()?,
                add: elements.to_vec(),
            })
        })
    }

    /// Changes elements of `table`, which is made or repaired where it is not as it shall be.
    /// What is changed is decided by `decide`, which may read by this connection; where
    /// somebody else changed any rules meanwhile, it is asked again. What would be deleted and
    /// added again as it was stays.
    ///
    /// # Errors
    /// Those of `decide`; [`Error::Refused`], [`Error::Unsupported`] and [`Error::Owned`], in which case
    /// nothing is changed; [`Error::Busy`].
    pub fn update<E: From<Error>>(
        &self,
        table: &Table,
        mut decide: impl FnMut() -> Result<Change, E>,
    ) -> Result<Updated, E> {
        let (mut updated, mut made_anew) = (Updated::Nothing, false);
        let done = until_current(|| {
            let generation = self.generation()?;
            let repairs = match self.repairs(table)? {
                Repairs::InPlace(repairs) => repairs,
                Repairs::Anew(messages) => {
                    if self.commit(table, messages, generation)? == Committed::Yes {
                        made_anew = true;
                    }
                    return Ok(Committed::Outdated);
                }
            };
            let Change { delete, add } = decide()?;
            let (stale, new) = (without(&delete, &add), without(&add, &delete));
            let stale = stale.into_iter().map(|it| table.delete_element(it));
            let new = new.into_iter().map(|it| table.add_element(it));
            let messages: Vec<_> = stale.chain(repairs).chain(new).collect();
            updated = match messages.as_slice() {
                _ if made_anew => Updated::Table,
                [] => Updated::Nothing,
                _ => Updated::Rules,
            };
            Ok(self.commit(table, messages, generation)?)
        });
        done.map(|()| updated)
    }

    /// Makes sure that the kernel could make `table`, which it is not told to do.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unsupported`].
    pub fn rehearse(&self, table: &Table) -> Result<(), Error> {
        let generation = self.generation()?;
        let repairs = self.repairs(table)?;
        let rehearsed = self.socket.rehearse(repairs.into_messages(), generation);
        rehearsed.map_err(|error| self.explained(table, error))
    }

    /// The element of `table` that has the key of `wanted`, whosever it is.
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

    /// Every element of `set`; none where there is no such table.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn elements_of(&self, table: &Table, set: &Set) -> Result<Vec<Element>, Error> {
        match self.socket.dump(table.list_elements(set)) {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            replies => {
                let replies = replies?;
                let elements = replies.iter().flat_map(|it| read_elements(set.name, it));
                // A hash table that is resized while it is told tells some twice.
                let mut told = HashSet::new();
                let elements = elements.filter(|it| told.insert(it.clone()));
                Ok(elements.collect())
            }
        }
    }

    /// Every element of `table`, in the order of its sets; none where there is no such table.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn elements(&self, table: &Table) -> Result<Vec<Element>, Error> {
        let mut elements = Vec::new();
        for set in &table.sets {
            elements.extend(self.elements_of(table, set)?);
        }
        Ok(elements)
    }

    /// What is not as [`Self::update`] leaves it, in words: chains of `table`, and `elements`,
    /// each of which is asked for. A list that is told while others change a set may lack what is
    /// there all the time.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn differences(&self, table: &Table, elements: &[Element]) -> Result<Vec<String>, Error> {
        let mut found = self.damage(table)?;
        let missing = self.missing(table, elements)?.into_iter();
        found.extend(missing.map(Element::describe_missing));
        Ok(found)
    }

    /// Those of `elements` that are not in `table`, or lead elsewhere there; none where the table has to be
    /// recreated, of which [`Self::differences`] reports more.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn missing<'e>(
        &self,
        table: &Table,
        elements: &'e [Element],
    ) -> Result<Vec<&'e Element>, Error> {
        let mut missing = Vec::new();
        if self.is_foreign(table)? {
            return Ok(missing);
        }
        for element in elements {
            if self.holder(table, element)?.as_ref() != Some(element) {
                missing.push(element);
            }
        }
        Ok(missing)
    }

    /// Where nothing is to be changed the kernel does not compare generations: a list that was
    /// told while somebody else changed the rules may lack what was there all the time.
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

    /// The kernel refuses changes to another program's table in the same way as those of a process without
    /// capability.
    fn explained(&self, table: &Table, error: Error) -> Error {
        let is_refused = error.errno() == Some(Errno::EPERM);
        if is_refused && self.is_owned(table).unwrap_or(false) {
            return Error::Owned { table: table.name };
        }
        error
    }

    /// The comments of the rules of the chain, in their order.
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
            // Whoever deletes takes this for "there is nothing": it had better be true.
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

/// Does `attempt` until nobody else changed the rules between its reading and its writing.
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

/// Those of `all` that `others` lacks.
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

/// Of many who try at once one gets through each time, so each does in the end. With fifty, one of
/// two hundred ADDs of portmap by sixteen processes gave up in two of seven runs.
const ATTEMPTS: usize = 1000;
