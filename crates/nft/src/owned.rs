//! Tables with the flag `owner` (Linux 5.12). The kernel accepts changes of such a table only by the
//! socket that created it, spares the table when another program runs `nft flush ruleset`, and
//! deletes it when the socket is closed, even if the program is killed.

use crate::attributes::Attributes;
use crate::error::failed;
use crate::exchange::End;
use crate::raw::{GET_TABLE, RawMessage, TABLE};
use crate::repair::TABLE_OWNER;
use crate::{Connection, Error, Family, Message, Table};

/// A table that a running program owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedTable {
    /// The table's name.
    pub name: String,
    /// The owner's [`Connection::port`].
    pub port: u32,
}

impl Connection {
    /// Creates `table`, with its chains and without sets. The kernel deletes the table when this
    /// connection is closed.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unsupported`]; the kernel is older than Linux 5.12, or there
    /// is a table of this name.
    pub fn create_owned(&self, table: &Table) -> Result<(), Error> {
        let mut messages = vec![table.create_owned()];
        messages.extend(table.chains.iter().map(|it| table.create_chain(it)));
        messages.extend(table.chains.iter().flat_map(|it| table.append_rules(it)));
        self.transact(&messages, None, End::Commit).map(drop)
    }

    /// Returns the tables of this family that running programs own.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn owned_tables(&self, family: Family) -> Result<Vec<OwnedTable>, Error> {
        let request = RawMessage::new(GET_TABLE, family.number(), Attributes::new());
        let tables = self.dump(&Message::new("read tables".to_owned(), request))?;
        let owned = tables.iter().filter_map(|table| {
            let port = u32::try_from(table.number(TABLE_OWNER)).ok()?;
            let name = table.text(TABLE);
            (port != 0).then_some(OwnedTable { name, port })
        });
        Ok(owned.collect())
    }

    /// Returns the number by which the kernel knows this connection's socket. No other netfilter
    /// socket of the namespace has this number.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn port(&self) -> Result<u32, Error> {
        let port = self.socket.port();
        port.map_err(failed("read the number of a netfilter socket"))
    }
}
