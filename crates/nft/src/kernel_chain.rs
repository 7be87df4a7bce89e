//! Reads chains and rule comments of any program's tables in `nf_tables`.

use crate::attributes::{number, value};
use crate::message::{self, HOOK_NUMBER};
use crate::raw::{CHAIN_HOOK, CHAIN_NAME, RawMessage, TABLE};
use crate::{Connection, Error, Family};

/// A chain in the kernel, of any program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelChain {
    /// Family of the chain's table.
    pub family: Family,
    /// The table's name.
    pub table: String,
    /// The chain's name.
    pub name: String,
    /// Whether the chain is a base chain of the forward hook.
    pub is_forward: bool,
}

impl Connection {
    /// Returns all chains of these families, of any program. Equivalent to `nft list chains`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn chains(&self, families: &[Family]) -> Result<Vec<KernelChain>, Error> {
        let mut chains = Vec::new();
        for family in families {
            let replies = self.dump(&message::list_chains(*family))?;
            chains.extend(replies.iter().map(|it| KernelChain::read(*family, it)));
        }
        Ok(chains)
    }

    /// Returns the comments of all rules in a table of any program; empty if the table does not
    /// exist. Equivalent to the comments in `nft list table`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn comments(&self, family: Family, table: &str) -> Result<Vec<String>, Error> {
        let rules = self.dump(&message::list_rules(family, table))?;
        Ok(rules.iter().filter_map(RawMessage::rule_comment).collect())
    }
}

impl KernelChain {
    fn read(family: Family, reply: &RawMessage) -> Self {
        let hook = reply
            .value(CHAIN_HOOK)
            .and_then(|it| value(it, HOOK_NUMBER));
        Self {
            family,
            table: reply.text(TABLE),
            name: reply.text(CHAIN_NAME),
            is_forward: hook.is_some_and(|it| number(Some(it)) == FORWARD),
        }
    }
}

/// `NF_INET_FORWARD`
const FORWARD: u64 = 2;
