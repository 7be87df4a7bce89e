//! Reads other programs' chains and rule comments in `nf_tables`.

use netlink_packet_netfilter::NetfilterMessageInner;
use netlink_packet_netfilter::nftables::{
    ChainAttribute, Hook, HookNumber, InetHookNumber, NfTablesMessage,
};

use crate::connection::Connection;
use crate::error::Error;
use crate::message::{self, Message};
use crate::reply::{HeldRule, Reply};
use crate::table::Family;

/// A chain in the kernel, of any program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldChain {
    /// Packets that its table sees.
    pub family: Family,
    /// The table's name.
    pub table: String,
    /// Its own name.
    pub name: String,
    /// It is a base chain of the forward hook.
    pub is_forward: bool,
}

impl Connection {
    /// Returns all chains of these families, of any program. Equivalent to `nft list chains`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn chains(&self, families: &[Family]) -> Result<Vec<HeldChain>, Error> {
        let mut chains = Vec::new();
        for family in families {
            let replies = self.socket.dump(message::list_chains(*family))?;
            chains.extend(replies.iter().filter_map(|it| HeldChain::read(*family, it)));
        }
        Ok(chains)
    }

    /// Returns the rule comments of any table. Equivalent to `nft list table`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn comments(&self, family: Family, table: &str) -> Result<Vec<String>, Error> {
        let rules = self.rules(message::list_rules(family, table))?;
        Ok(rules.into_iter().filter_map(|it| it.comment).collect())
    }

    /// Returns the rules that `message` lists, in the order of each chain.
    pub(crate) fn rules(&self, message: Message) -> Result<Vec<HeldRule>, Error> {
        let replies = self.socket.dump(message)?.into_iter();
        let rules = replies.filter_map(|reply| match reply {
            Reply::Rule(rule) => Some(rule),
            _ => None,
        });
        Ok(rules.collect())
    }
}

impl HeldChain {
    fn read(family: Family, reply: &Reply) -> Option<Self> {
        let Reply::Other(NetfilterMessageInner::NfTables(NfTablesMessage::NewChain(message))) =
            reply
        else {
            return None;
        };
        let mut chain = Self {
            family,
            table: String::new(),
            name: String::new(),
            is_forward: false,
        };
        for attribute in &message.attributes {
            match attribute {
                ChainAttribute::Table(name) => chain.table.clone_from(name),
                ChainAttribute::Name(name) => chain.name.clone_from(name),
                ChainAttribute::Hook(hook) => chain.is_forward = hook.contains(&FORWARD),
                _ => {}
            }
        }
        Some(chain)
    }
}

const FORWARD: Hook = Hook::Number(HookNumber::Inet(InetHookNumber::Forward));
