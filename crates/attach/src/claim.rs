//! Claims a free routing table of a sandbox.

use cni::note_failure;
use netlink::{Connection, Request, created, found};

/// A routing table that nothing uses, marked in the kernel, so that no concurrent ADD in the sandbox
/// chooses it. Dropping this value removes the mark; by then, a rule, route or VRF link must use the
/// table.
pub struct ClaimedTable<'a> {
    connection: &'a Connection,
    /// Number of the table.
    pub number: u32,
}

impl<'a> ClaimedTable<'a> {
    /// Claims the first free table from `first` on. Calls `record` with the number before each
    /// claim: if this process is killed, DEL has to remove the mark
    /// ([`Request::release_table`]).
    ///
    /// # Errors
    /// An error of `record`, or the kernel refuses to list rules, routes or links.
    pub fn new(
        connection: &'a Connection,
        first: u32,
        mut record: impl FnMut(u32) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let mut number = connection.free_table(first)?;
        loop {
            record(number)?;
            if created(connection.execute([Request::claim_table(number)]))?.is_some() {
                let claimed = Self { connection, number };
                // Another ADD may have used the table, and removed its mark, before this claim.
                if connection.free_table(number)? == number {
                    return Ok(claimed);
                }
            }
            number = connection.free_table(number.saturating_add(1))?;
        }
    }
}

impl Drop for ClaimedTable<'_> {
    fn drop(&mut self) {
        let released = self
            .connection
            .execute([Request::release_table(self.number)]);
        note_failure(found(released).map(drop));
    }
}
