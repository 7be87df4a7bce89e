//! Checks reported deletions: whether the object is still missing in `nf_tables`, and whether an
//! existing attachment needs it.

use std::collections::BTreeSet;

use facts::Proof;
use netlink::Link;
use nft::{Connection, Deleted, Deletion, Element, Family, Table, chain_of_base};

/// Decides for deletions in the suite's tables of `nf_tables` whether an existing attachment now
/// lacks what was deleted.
pub(crate) struct DeletionCheck {
    pub connection: Connection,
    tables: Vec<Table>,
    /// The links of the host; `None` until they are needed.
    links: Option<Vec<Link>>,
    /// Deleted elements that no existing attachment needs, each with its table.
    pub ended: Vec<(Name, Element)>,
}

impl DeletionCheck {
    pub fn open() -> anyhow::Result<Self> {
        Ok(Self {
            connection: Connection::open()?,
            tables: node::tables(),
            links: None,
            ended: Vec::new(),
        })
    }

    pub fn judge(
        &mut self,
        deletion: &Deletion,
        missing: &mut MissingObjects,
    ) -> anyhow::Result<()> {
        let is_of = |it: &&Table| (it.family, it.name) == (deletion.family, deletion.table);
        let Some(table) = self.tables.iter().find(is_of).cloned() else {
            return Ok(());
        };
        if missing.owners.is_none() && missing.tables.contains(table.name) {
            return Ok(());
        }
        let is_lost = match &deletion.deleted {
            // A plugin deletes a table or a set only to recreate one that differs from its own.
            // Even then, elements may be lost.
            Deleted::Table | Deleted::Set => true,
            Deleted::Chain(chain) => self.lacks_chain(&table, chain)?,
            Deleted::Rule { chain, comment } => {
                self.lacks_rule(&table, chain, comment.as_deref())?
            }
            Deleted::Elements(elements) => {
                return self.judge_elements(&table, elements, missing);
            }
        };
        if is_lost {
            missing.tables.insert(table.name);
            missing.owners = None;
        }
        Ok(())
    }

    /// Returns whether `chain` is missing although no DEL deletes it, or although the chain exists
    /// whose base chain it is ([`chain_of_base`]). Returns `false` for a chain to which elements
    /// jump: DEL deletes such a chain together with the last of these elements, and the kernel
    /// refuses to delete it earlier.
    fn lacks_chain(&self, table: &Table, chain: &str) -> anyhow::Result<bool> {
        let is_described = table.chains.iter().any(|it| it.name == chain);
        let stays = is_described || firewall::is_chain_of_mark(table, chain);
        let stays = match chain_of_base(chain) {
            Some(other) => self.connection.has_chain(table, other)?,
            None => stays,
        };
        Ok(stays && !self.connection.has_chain(table, chain)?)
    }

    /// Returns whether the deleted rule is still missing: whether no rule of the table has its
    /// comment. If the chain is missing, too, returns what [`Self::lacks_chain`] returns. Returns
    /// `false` if the deleted rule had no comment, because all rules of this suite have one.
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
        missing: &mut MissingObjects,
    ) -> anyhow::Result<()> {
        for element in deleted {
            if !self.is_needed(table, element)? {
                let name = (table.family, table.name);
                self.ended.push((name, element.clone()));
            } else if !self.has(table, element)? {
                missing.tables.insert(table.name);
                if element.owner.is_empty() {
                    missing.owners = None;
                }
                let owners = missing.owners.as_mut();
                owners.map(|it| it.insert(element.owner.clone()));
            }
        }
        Ok(())
    }

    /// Returns whether an existing attachment needs the element. Only the element's owner needs it,
    /// unless all attachments of a bridge share it: then each attachment of this bridge needs it.
    /// An attachment that stands by for an address does not need its element, because that element
    /// has no effect on packets, and the attachment loses it when it gets the address.
    fn is_needed(&mut self, table: &Table, element: &Element) -> anyhow::Result<bool> {
        if firewall::is_shared(element) {
            return Ok(firewall::is_needed(&self.connection, element)?);
        }
        Ok(!attach::stands_by(table.name, element) && self.is_owner(table.name, &element.owner)?)
    }

    /// Returns whether the attachment with this tag exists and has a veth link on the host.
    pub fn is_attached(&mut self, table: &str, owner: &str) -> anyhow::Result<bool> {
        Ok(self.is_owner(table, owner)? && self.has_link(owner)?)
    }

    /// Returns whether the attachment whose tag is `owner` exists. It exists if it has what the
    /// plugin of `table` creates before its elements.
    fn is_owner(&mut self, table: &str, owner: &str) -> anyhow::Result<bool> {
        match node::elements_in(table).map(|it| it.proof) {
            _ if owner.is_empty() => Ok(false),
            Some(Proof::Record(exists)) => Ok(exists(owner)),
            Some(Proof::HostLink) | None => self.has_link(owner),
        }
    }

    fn has_link(&mut self, owner: &str) -> anyhow::Result<bool> {
        let links = match &mut self.links {
            Some(links) => links,
            none => none.insert(netlink::Connection::open()?.links()?),
        };
        let is_end = |it: &Link| attach::is_host_end_of(it, owner);
        Ok(links.iter().any(is_end))
    }

    /// Returns whether the element exists, or whether another existing attachment has taken over
    /// its key: two attachments may have the same address for a while.
    fn has(&mut self, table: &Table, element: &Element) -> anyhow::Result<bool> {
        let holder = match self.connection.holder(table, element) {
            // The kernel refuses the look-up if the set does not exist. Then the element is
            // missing, too.
            Err(error) if error.is_not_found() => return Ok(false),
            holder => holder?,
        };
        match holder {
            Some(holder) if holder.owner == element.owner => Ok(true),
            Some(holder) => self.is_owner(table.name, &holder.owner),
            None => Ok(false),
        }
    }
}

/// What the suite's tables lack, and which attachments need RELOAD. RELOAD, a verb of this suite,
/// restores lost rules and elements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MissingObjects {
    /// Names of the tables that are known to lack something.
    pub tables: BTreeSet<&'static str>,
    /// The tags of the attachments that lost elements; `None` if any attachment may have lost some.
    pub owners: Option<BTreeSet<String>>,
}

impl MissingObjects {
    /// Returns a value that says that each table may lack any elements.
    pub fn of_anything() -> Self {
        Self::default()
    }

    /// Returns a value that names these attachments and no tables. The caller uses it to repeat
    /// RELOAD for attachments that an earlier RELOAD did not restore.
    pub fn of(owners: BTreeSet<String>) -> Self {
        Self {
            owners: Some(owners),
            ..Self::default()
        }
    }

    /// Adds the tables and the owners of `other`. `owners` becomes `None` if it is `None` in either
    /// value, because any attachment may then have lost elements.
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

    /// Returns whether something in the tables is lost, or may be lost. Returns `false` for a value
    /// from [`Self::of`]: nothing new is lost, and the caller only repeats a RELOAD that failed.
    pub fn is_of_tables(&self) -> bool {
        !self.tables.is_empty() || self.owners.is_none()
    }

    /// Returns whether only elements of known attachments are missing. They may need no
    /// repair, so the caller checks the deletions again a little later. The reason: a
    /// failed ADD deletes the elements before the link. While the link exists, the elements seem
    /// to be missing.
    pub fn may_be_transient(&self) -> bool {
        self.owners.is_some()
    }

    /// Returns whether the attachment with the tag `owner` may need RELOAD: its elements in the
    /// suite's tables may be lost, or an earlier RELOAD did not restore them.
    pub fn concerns(&self, owner: &str) -> bool {
        self.owners.as_ref().is_none_or(|it| it.contains(owner))
    }
}

pub(crate) type Name = (Family, &'static str);
