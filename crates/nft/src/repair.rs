//! Finds damage of a table and repairs it.

use netlink_packet_netfilter::NetfilterMessageInner;
use netlink_packet_netfilter::nftables::{
    ChainAttribute, ExpressionAttribute, NfTablesMessage, SetAttribute, TableAttribute, TableFlags,
};

use crate::change::{Change, Counts, Updated};
use crate::connection::Connection;
use crate::count;
use crate::error::Error;
use crate::message::{ACCEPT, Message, VERDICT, set_of_limits};
use crate::reply::Reply;
use crate::table::{Chain, Table};

/// Messages that repair or recreate a table.
pub(crate) enum Repairs {
    /// The first part of a transaction; empty if the table is complete.
    InPlace(Vec<Message>),
    /// A transaction that recreates the table, which cannot be repaired.
    Alone(Vec<Message>, Updated),
}

impl Repairs {
    pub fn into_messages(self) -> Vec<Message> {
        match self {
            Self::InPlace(messages) | Self::Alone(messages, _) => messages,
        }
    }
}

impl Connection {
    /// Returns the repairs of `table`. Complete chains stay untouched: the kernel blocks a caller
    /// that recreates a chain or deletes rules until it has freed them.
    pub(crate) fn repairs(&self, table: &Table) -> Result<Repairs, Error> {
        let broken = self.broken_chains(table)?;
        if broken.is_empty() {
            let wake = self.is_dormant(table)?.then(|| table.create());
            return Ok(Repairs::InPlace(wake.into_iter().collect()));
        }
        if self.is_foreign(table)? {
            return Ok(Repairs::Alone(self.anew(table)?, Updated::Table));
        }
        let mut messages = creation(table, &broken);
        messages.extend(broken.iter().map(|chain| table.flush_chain(chain)));
        messages.extend(broken.iter().flat_map(|chain| table.append_rules(chain)));
        let recount = Change {
            counts: Counts::Listed,
            ..Change::default()
        };
        let counts = self.count(table, &recount)?;
        if counts.is_empty() {
            return Ok(Repairs::InPlace(messages));
        }
        messages.extend(counts);
        Ok(Repairs::Alone(messages, Updated::Rules))
    }

    /// Returns messages about the damage of the table itself that [`Self::update`] would repair.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn damage(&self, table: &Table) -> Result<Vec<String>, Error> {
        let name = table.name;
        let broken = self.broken_chains(table)?.into_iter();
        let mut found: Vec<_> = broken
            .map(|Chain { name: chain, .. }| {
                format!("chain {chain} of nf_tables table {name} was changed")
            })
            .collect();
        if self.is_dormant(table)? {
            found.push(format!("nf_tables table {name} is dormant"));
        }
        Ok(found)
    }

    /// Returns whether a set or chain with a name of `table` has another type.
    pub(crate) fn is_foreign(&self, table: &Table) -> Result<bool, Error> {
        for set in &table.sets {
            if !self.fits(&set.shape(), table.get_set(set), set_attributes)? {
                return Ok(true);
            }
        }
        for chain in &table.chains {
            let ask = table.get_chain(&chain.name);
            if !self.fits(&chain.shape(), ask, chain_attributes)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns messages that recreate the table with its reusable elements. Elements of a set of
    /// another type are lost, and so are elements that point to foreign chains, which this crate
    /// cannot recreate.
    fn anew(&self, table: &Table) -> Result<Vec<Message>, Error> {
        let mut messages = vec![table.delete()];
        messages.extend(creation(table, &table.chains.iter().collect::<Vec<_>>()));
        messages.extend(table.chains.iter().flat_map(|it| table.append_rules(it)));
        let is_ours = |name: &str| table.chains.iter().any(|it| it.name == name);
        let mut kept = Vec::new();
        for set in table.sets.iter().filter(|it| !it.is_of_counts()) {
            if self.fits(&set.shape(), table.get_set(set), set_attributes)? {
                let elements = self.elements_of(table, set)?.into_iter();
                kept.extend(elements.filter(|it| it.chain().is_none_or(is_ours)));
            }
        }
        messages.extend(kept.iter().map(|it| table.add_element(it)));
        messages.extend(count::first(table, &kept));
        Ok(messages)
    }

    /// Returns whether the object of `ask` has this shape or does not exist.
    fn fits<A: PartialEq>(
        &self,
        shape: &[A],
        ask: Message,
        read: fn(Reply) -> Option<Vec<A>>,
    ) -> Result<bool, Error> {
        let replies = match self.socket.get(ask) {
            Err(error) if error.is_not_found() => return Ok(true),
            replies => replies?,
        };
        let found = replies.into_iter().find_map(read);
        Ok(found
            .is_none_or(|it| it.len() == shape.len() && shape.iter().all(|one| it.contains(one))))
    }

    fn is_dormant(&self, table: &Table) -> Result<bool, Error> {
        let attributes = self.table_attributes(table)?;
        Ok(attributes.iter().any(|attribute| {
            matches!(attribute, TableAttribute::Flags(it) if it.contains(TableFlags::Dormant))
        }))
    }

    /// Returns whether another program owns the table. A table that outlived its owner (`flags
    /// owner,persist`) has none.
    pub(crate) fn is_owned(&self, table: &Table) -> Result<bool, Error> {
        let attributes = self.table_attributes(table)?;
        let is_owner =
            |it: &TableAttribute| matches!(it, TableAttribute::Owner(port) if *port != 0);
        Ok(attributes.iter().any(is_owner))
    }

    /// Returns the table's attributes; empty if it does not exist.
    fn table_attributes(&self, table: &Table) -> Result<Vec<TableAttribute>, Error> {
        let replies = match self.socket.get(table.get()) {
            Err(error) if error.is_not_found() => return Ok(Vec::new()),
            replies => replies?,
        };
        let attributes = replies.into_iter().filter_map(|reply| match reply {
            Reply::Other(NetfilterMessageInner::NfTables(NfTablesMessage::NewTable(it))) => {
                Some(it.attributes)
            }
            _ => None,
        });
        Ok(attributes.flatten().collect())
    }

    /// Returns the chains that are missing or do not have exactly their rules.
    fn broken_chains<'a>(&self, table: &'a Table) -> Result<Vec<&'a Chain>, Error> {
        let mut broken = Vec::new();
        for chain in &table.chains {
            if !self.is_complete(table, chain)? {
                broken.push(chain);
            }
        }
        Ok(broken)
    }

    /// Returns whether the chain has exactly its rules and accepts packets that match none.
    ///
    /// Existing rules imply existing sets: the kernel does not delete a set that a rule uses. They
    /// also imply the right hook, which a rule's comment contains.
    fn is_complete(&self, table: &Table, chain: &Chain) -> Result<bool, Error> {
        let found = match self.rules_of(table, &chain.name) {
            Err(error) if error.is_not_found() => return Ok(false),
            found => found?,
        };
        let has_rules = chain.identities().map(Some).eq(found);
        Ok(has_rules && (chain.base.is_none() || self.accepts(table, chain)?))
    }

    /// Returns whether the policy of a base chain is `accept`; any process can change it without
    /// touching the rules.
    fn accepts(&self, table: &Table, chain: &Chain) -> Result<bool, Error> {
        let replies = match self.socket.get(table.get_chain(&chain.name)) {
            Err(error) if error.is_not_found() => return Ok(false),
            replies => replies?,
        };
        Ok(replies.iter().any(|reply| match reply {
            Reply::Other(NetfilterMessageInner::NfTables(NfTablesMessage::NewChain(it))) => {
                it.attributes.contains(&ChainAttribute::Policy(ACCEPT))
            }
            _ => false,
        }))
    }
}

/// Returns messages that create the table, its sets and these chains where they are missing.
fn creation(table: &Table, chains: &[&Chain]) -> Vec<Message> {
    let mut messages = vec![table.create()];
    let sets = table.sets.iter().zip(1..);
    messages.extend(sets.map(|(set, id)| table.create_set(set, id)));
    messages.extend(chains.iter().map(|chain| table.create_chain(chain)));
    messages
}

/// Returns the attributes that `Set::shape` may contain. The kernel adds the length of a verdict
/// itself.
fn set_attributes(reply: Reply) -> Option<Vec<SetAttribute>> {
    let Reply::Other(NetfilterMessageInner::NfTables(NfTablesMessage::NewSet(set))) = reply else {
        return None;
    };
    let mut attributes = set.attributes;
    let leads_to_chains = attributes.contains(&SetAttribute::DataType(VERDICT));
    let limit = SetAttribute::Expression(ExpressionAttribute::Name("limit".to_owned()));
    let holds_limits = attributes.contains(&limit);
    attributes.retain(|attribute| match attribute {
        SetAttribute::DataLen(_) => !leads_to_chains,
        SetAttribute::Flags(_)
        | SetAttribute::KeyType(_)
        | SetAttribute::KeyLen(_)
        | SetAttribute::DataType(_) => true,
        _ => false,
    });
    attributes.extend(holds_limits.then(set_of_limits));
    Some(attributes)
}

/// Returns the attributes that `Chain::shape` may contain.
fn chain_attributes(reply: Reply) -> Option<Vec<ChainAttribute>> {
    let Reply::Other(NetfilterMessageInner::NfTables(NfTablesMessage::NewChain(chain))) = reply
    else {
        return None;
    };
    let mut attributes = chain.attributes;
    attributes.retain(|it| matches!(it, ChainAttribute::Hook(_) | ChainAttribute::Type(_)));
    Some(attributes)
}
