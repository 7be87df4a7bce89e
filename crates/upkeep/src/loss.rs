//! Listens to deletions in the suite's tables of `nf_tables`, and judges which of them are losses.
//!
//! A DEL deletes elements, too. But a DEL also ends the attachment: it deletes the link or the ifb,
//! or retires the record. So a deleted element is a loss only if its owner still has the link, the
//! ifb or the record a moment later. DELs need no repair, and the judgement needs no list of all
//! elements.

use std::collections::BTreeSet;
use std::time::Duration;

use netlink::{Link, LinkKind};
use nft::{Connection, Deleted, Deletion, Element, Heard, Table, Watch};

/// Listens to deletions in the suite's tables, in the network namespace of the thread that opened
/// it.
pub struct Losses {
    watch: Watch,
    tables: Vec<Table>,
}

/// Reported deletions that may be losses.
#[derive(Debug, Default)]
pub struct Suspicion {
    deletions: Vec<Deletion>,
    /// Notifications were lost, so anything may be missing.
    is_incomplete: bool,
}

/// What the suite's tables lack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loss {
    /// Names of the tables that are known to lack something.
    pub tables: BTreeSet<&'static str>,
    /// The owners of the lost elements; `None` if any attachment may have lost some.
    pub owners: Option<BTreeSet<String>>,
}

impl Losses {
    /// Starts to listen.
    ///
    /// # Errors
    /// The kernel has no `nf_tables`, or opens no socket.
    pub fn open() -> anyhow::Result<Self> {
        let watch = Watch::open()?;
        watch.make_room()?;
        let tables = tables();
        Ok(Self { watch, tables })
    }

    /// Waits for the next notification. It reports a deletion, or that the kernel dropped
    /// notifications.
    ///
    /// # Errors
    /// The socket failed.
    pub fn hear(&self) -> anyhow::Result<Heard> {
        loop {
            match self.watch.hear(&self.tables, Duration::MAX)? {
                None | Some(Heard::Other) => {}
                Some(heard) => return Ok(heard),
            }
        }
    }
}

impl Suspicion {
    /// Adds a notification.
    pub fn add(&mut self, heard: Heard) {
        match heard {
            Heard::Deletion(it) if !self.is_incomplete && self.deletions.len() < MOST_DELETIONS => {
                self.deletions.push(it);
            }
            Heard::Deletion(_) | Heard::Lost => self.overflow(),
            Heard::Other => {}
        }
    }

    /// Returns whether nothing was heard.
    pub fn is_empty(&self) -> bool {
        self.deletions.is_empty() && !self.is_incomplete
    }

    fn overflow(&mut self) {
        self.deletions = Vec::new();
        self.is_incomplete = true;
    }

    /// Compares the kernel's state with the deletions. Returns `None` if nothing is missing that an
    /// existing attachment needs.
    ///
    /// # Errors
    /// Refusals of the kernel.
    pub fn judge(&self) -> anyhow::Result<Option<Loss>> {
        if self.is_incomplete {
            return Ok(Some(Loss::of_anything()));
        }
        let mut judge = Judge::open()?;
        let mut loss = Loss {
            owners: Some(BTreeSet::new()),
            ..Loss::default()
        };
        for deletion in &self.deletions {
            judge.judge(deletion, &mut loss)?;
        }
        Ok(Some(loss).filter(|it| !it.tables.is_empty()))
    }
}

impl Loss {
    /// Returns a loss of unknown extent.
    pub fn of_anything() -> Self {
        Self::default()
    }

    /// Returns this loss together with another one.
    pub fn and(mut self, other: Option<Self>) -> Self {
        if let Some(other) = other {
            self.tables.extend(other.tables);
            let owners = self.owners.zip(other.owners);
            self.owners = owners.map(|(mut all, more)| {
                all.extend(more);
                all
            });
        }
        self
    }

    /// Returns whether only elements of known owners are missing. The plugin `bandwidth` deletes the
    /// ifb after the elements, and a failed ADD removes the link after them. So such a loss may end
    /// by itself.
    pub fn may_pass(&self) -> bool {
        self.owners.is_some()
    }

    /// Returns whether an attachment with this tag may have lost something.
    pub fn concerns(&self, owner: &str) -> bool {
        self.owners.as_ref().is_none_or(|it| it.contains(owner))
    }
}

/// Looks for deleted objects, and for what shows that their owners exist.
struct Judge {
    connection: Connection,
    tables: Vec<Table>,
    /// The node's links, read when the first one is needed.
    links: Option<Vec<Link>>,
}

impl Judge {
    fn open() -> anyhow::Result<Self> {
        Ok(Self {
            connection: Connection::open()?,
            tables: tables(),
            links: None,
        })
    }

    fn judge(&mut self, deletion: &Deletion, loss: &mut Loss) -> anyhow::Result<()> {
        let is_of = |it: &&Table| (it.family, it.name) == (deletion.family, deletion.table);
        let Some(table) = self.tables.iter().find(is_of).cloned() else {
            return Ok(());
        };
        if loss.owners.is_none() && loss.tables.contains(table.name) {
            return Ok(());
        }
        let is_lost = match &deletion.deleted {
            // No plugin deletes these, except to recreate a table that an earlier version made.
            // Then elements may be lost, too.
            Deleted::Table | Deleted::Set => true,
            Deleted::Chain(chain) => self.lacks_chain(&table, chain)?,
            Deleted::Rule { chain, comment } => {
                self.lacks_rule(&table, chain, comment.as_deref())?
            }
            Deleted::Elements(elements) => {
                return self.judge_elements(&table, elements, loss);
            }
        };
        if is_lost {
            loss.tables.insert(table.name);
            loss.owners = None;
        }
        Ok(())
    }

    /// Returns whether a chain is missing that no DEL deletes. A chain to which elements point is
    /// deleted with its last element, and the kernel keeps it until then.
    fn lacks_chain(&self, table: &Table, chain: &str) -> anyhow::Result<bool> {
        let is_described = table.chains.iter().any(|it| it.name == chain);
        let stays = is_described || firewall::is_chain_of_mark(table, chain);
        Ok(stays && !self.connection.has_chain(table, chain)?)
    }

    /// Returns whether a rule with a comment of this suite is missing in a chain that should exist.
    fn lacks_rule(
        &self,
        table: &Table,
        chain: &str,
        comment: Option<&str>,
    ) -> anyhow::Result<bool> {
        let Some(comment) = comment else {
            return Ok(false);
        };
        if !self.connection.has_chain(table, chain)? {
            return self.lacks_chain(table, chain);
        }
        let comments = self.connection.comments(table.family, table.name)?;
        Ok(comments.iter().all(|it| it != comment))
    }

    fn judge_elements(
        &mut self,
        table: &Table,
        deleted: &[Element],
        loss: &mut Loss,
    ) -> anyhow::Result<()> {
        for element in deleted {
            if self.is_needed(table, element)? && !self.has(table, element)? {
                loss.tables.insert(table.name);
                if element.owner.is_empty() {
                    loss.owners = None;
                }
                let owners = loss.owners.as_mut();
                owners.map(|it| it.insert(element.owner.clone()));
            }
        }
        Ok(())
    }

    /// Returns whether the owner of the element exists.
    fn is_needed(&mut self, table: &Table, element: &Element) -> anyhow::Result<bool> {
        let owner = element.owner.as_str();
        match table.name {
            firewall::TABLE if firewall::is_shared(element) => {
                Ok(firewall::is_needed(&self.connection, element)?)
            }
            _ if owner.is_empty() => Ok(false),
            firewall::TABLE | firewall::FRAMES_TABLE => Ok(firewall::is_recorded(owner)),
            portmap::TABLE => Ok(portmap::is_recorded(owner)),
            bandwidth::TABLE => self.has_link(owner, &LinkKind::Ifb),
            _ => self.has_link(owner, &LinkKind::Veth),
        }
    }

    fn has_link(&mut self, owner: &str, kind: &LinkKind) -> anyhow::Result<bool> {
        let links = match &mut self.links {
            Some(links) => links,
            none => none.insert(netlink::Connection::open()?.links()?),
        };
        let is_of = |it: &Link| it.kind == *kind && it.alias.as_deref() == Some(owner);
        Ok(links.iter().any(is_of))
    }

    fn has(&self, table: &Table, element: &Element) -> anyhow::Result<bool> {
        match self.connection.holder(table, element) {
            // Without the set, the kernel refuses the look-up.
            Err(error) if error.is_not_found() => Ok(false),
            holder => Ok(holder?.is_some_and(|it| it.owner == element.owner)),
        }
    }
}

fn tables() -> Vec<Table> {
    node::tables().into_iter().map(|(_, table)| table).collect()
}

/// Deletions that are judged one by one. Above this number, anything may be missing. A thousand
/// pods with ten elements each delete fewer.
const MOST_DELETIONS: usize = 20_000;
