//! Reads which of the suite's `nf_tables` tables are complete, damaged or absent, and how many
//! elements each has.

use nft::{Connection, Table};

use super::firewall::Held;
use super::lookup::tables;

/// The state of one of this suite's tables in `nf_tables`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableState {
    /// The table's family, as nft(8) names it.
    pub family: &'static str,
    /// The table's name.
    pub name: &'static str,
    /// Whether the table is complete, damaged or absent.
    pub condition: Condition,
    /// Number of elements in the sets of the table, except for sets that only count elements of
    /// other sets.
    pub elements: usize,
}

/// Whether a table of this suite is complete, damaged or absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Each chain has exactly the rules of this release or all rules of another release.
    Complete,
    /// Another program changed or deleted a chain, or made the table dormant (without effect). The
    /// next ADD repairs the table.
    Damaged,
    /// The table does not exist: no plugin needed it yet, or another program deleted it.
    Absent,
}

impl TableState {
    /// Returns the states of all tables of this suite, and their elements, without those that the
    /// attachments of a bridge share.
    pub(super) fn read_all() -> Result<(Vec<Self>, Vec<Held>), nft::Error> {
        let connection = Connection::open()?;
        let (mut states, mut held) = (Vec::new(), Vec::new());
        for table in tables() {
            let elements = connection.elements(&table)?;
            states.push(Self {
                family: table.family.name(),
                name: table.name,
                condition: Condition::read(&connection, &table)?,
                elements: elements.len(),
            });
            held.extend(Held::all_of(&table, &elements));
        }
        Ok((states, held))
    }
}

impl Condition {
    fn read(connection: &Connection, table: &Table) -> Result<Self, nft::Error> {
        if !connection.exists(table)? {
            return Ok(Self::Absent);
        }
        let damage = connection.damage(table)?;
        Ok(if damage.is_empty() {
            Self::Complete
        } else {
            Self::Damaged
        })
    }
}
