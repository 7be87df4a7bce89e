//! What others have in `nf_tables`: chains, and the comments of rules.

use netlink_packet_netfilter::NetfilterMessageInner;
use netlink_packet_netfilter::nftables::{
    ChainAttribute, Hook, HookNumber, InetHookNumber, NfTablesMessage,
};

use crate::connection::Connection;
use crate::error::Error;
use crate::message;
use crate::reply::Reply;
use crate::table::Family;

/// A chain as the kernel holds it, whosever it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldChain {
    /// Which packets its table sees.
    pub family: Family,
    /// The table's name.
    pub table: String,
    /// Its own name.
    pub name: String,
    /// Packets that the host forwards enter it by themselves.
    pub is_forward: bool,
}

impl Connection {
    /// Every chain of these families, whosever it is. As `nft list chains`.
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

    /// The comments of the table's rules, whosever it is. As `nft list table`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn comments(&self, family: Family, table: &str) -> Result<Vec<String>, Error> {
        let replies = self.socket.dump(message::list_rules(family, table))?;
        let comments = replies.into_iter().filter_map(|reply| match reply {
            Reply::Rule(comment) => comment,
            _ => None,
        });
        Ok(comments.collect())
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
