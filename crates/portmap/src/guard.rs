//! The guards that keep neighbours off 127.0.0.0/8 while `route_localnet` is 1 (CVE-2020-8558),
//! besides the chain in portmap's own table, which `nft flush ruleset` deletes.
//!
//! Two `IPsec` policies survive the flush, but cost each packet to the host time. While cni-agent
//! runs, it has a table that only it can change, and removes the policies. One of the guards always
//! exists:
//!
//! - The agent creates the table before it removes the policies. Before it deletes the table, it
//!   adds them again if it removed some, or if a record shows that an attachment needs them. It looks
//!   for such records again afterwards.
//! - ADD and RELOAD write the record, and then look for the table. So either they find no table and
//!   add the policies, or the agent finds the record.
//!
//! If the agent is killed, the kernel deletes the table at once. Then only the chain in portmap's
//! own table guards, until ADD, RELOAD or the next agent adds another guard.

use std::time::{SystemTime, UNIX_EPOCH};

use attach::coded;
use cni::note;
use netlink::{Packets, Policies};
use nft::{Connection, Family, Table, supported};

use crate::networks::LOCALNET;
use crate::record;
use crate::table::martians;

/// The agent's guard of 127.0.0.0/8: a table of `nf_tables` that exists until this value is dropped,
/// or until the process ends. No other program can change or delete the table.
pub struct LocalnetGuard {
    /// The socket that owns the table.
    connection: Connection,
    /// Whether there were `IPsec` policies to remove.
    has_removed: bool,
}

impl LocalnetGuard {
    /// Creates the table.
    ///
    /// # Errors
    /// The kernel refuses the table: it is older than Linux 5.12, for example.
    pub fn take() -> anyhow::Result<Self> {
        let connection = Connection::open()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs();
        // The number of the socket proves to other processes that the agent lives (`is_held`). The
        // time makes the name another one than in rules that were saved earlier: the kernel refuses
        // to restore a table that another program owns, and with it all rules of the file.
        let name = format!("{NAME}{}-{now:x}", connection.port()?);
        let table = Table {
            family: FAMILY,
            // The process creates one such table.
            name: name.leak(),
            sets: Vec::new(),
            chains: vec![martians(FAMILY)],
        };
        connection.create_owned(&table)?;
        Ok(Self {
            connection,
            has_removed: false,
        })
    }

    /// Removes the `IPsec` policies of portmap, because the table suffices.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn remove_policies(&mut self) -> anyhow::Result<()> {
        let Some(policies) = Policies::open()? else {
            return Ok(());
        };
        let accepted = policies.accepted(&localnet_packets())?;
        let mut blocked = localnet_packets();
        blocked.retain(|it| !accepted.contains(it));
        // They have to come back even if only one of the deletions succeeds.
        self.has_removed |= !blocked.is_empty();
        Ok(policies.unblock(&blocked)?)
    }

    /// Adds the `IPsec` policies again if they were removed or if an attachment needs them, and
    /// deletes the table.
    ///
    /// # Errors
    /// The kernel refuses a policy. The table is deleted nevertheless.
    pub fn release(self) -> anyhow::Result<()> {
        let restore = || match Policies::open()? {
            Some(policies) if self.has_removed || record::needs_policies() => {
                anyhow::Ok(policies.block(&localnet_packets())?)
            }
            _ => Ok(()),
        };
        let first = restore();
        drop(self.connection);
        // An ADD may have found the table after the first look for records.
        cni::all([first, restore()])
    }
}

/// Adds the `IPsec` policies, unless they exist or the agent guards.
pub(crate) fn add_policies(connection: &Connection) -> anyhow::Result<()> {
    let Some(policies) = Policies::open()? else {
        note(
            "this kernel has no IPsec policies (CONFIG_XFRM_USER): only nf_tables keeps neighbours off 127.0.0.0/8",
        );
        return Ok(());
    };
    let accepted = policies.accepted(&localnet_packets())?;
    if accepted.is_empty() || is_held(connection).map_err(coded)? {
        return Ok(());
    }
    policies.block(&accepted)?;
    for packets in policies.accepted(&accepted)? {
        note!("an IPsec policy of another program accepts {packets}, so only nf_tables drops them");
    }
    Ok(())
}

/// Returns the packets that `IPsec` policies have to block and no policy blocks. Returns none if the
/// kernel does not support policies, or if the agent guards.
pub(crate) fn accepted() -> anyhow::Result<Vec<Packets>> {
    let Some(policies) = Policies::open()? else {
        return Ok(Vec::new());
    };
    let accepted = policies.accepted(&localnet_packets())?;
    if accepted.is_empty() || is_localnet_guarded()? {
        return Ok(Vec::new());
    }
    // An agent that has just ended has added them before it deleted its table.
    Ok(policies.accepted(&accepted)?)
}

/// Returns whether a running agent guards 127.0.0.0/8 by a table ([`LocalnetGuard`]).
///
/// # Errors
/// The kernel refuses a request.
pub fn is_localnet_guarded() -> anyhow::Result<bool> {
    let held = Connection::open().and_then(|it| is_held(&it));
    Ok(supported(held).map_err(coded)? == Some(true))
}

/// Returns whether the table of a running agent exists. A table of the same name from rules that
/// were saved and restored does not count: nft(8), which owns it until its end, has another socket.
fn is_held(connection: &Connection) -> Result<bool, nft::Error> {
    let mut owned = connection.owned_tables(FAMILY)?.into_iter();
    Ok(owned.any(|table| {
        let rest = table.name.strip_prefix(NAME);
        let number = rest.and_then(|it| it.split('-').next());
        number == Some(&table.port.to_string())
    }))
}

/// Returns the packets that `IPsec` policies have to drop: packets from or to 127.0.0.0/8. The
/// policies affect only packets that arrive through a link other than `lo`, because the kernel does
/// not apply them on `lo`.
pub fn localnet_packets() -> Vec<Packets> {
    vec![Packets::To(LOCALNET), Packets::From(LOCALNET)]
}

/// Start of the name of the agent's table. The number of its socket and the time follow.
const NAME: &str = "cni-localhost-";

/// Half of the cost of a table of family `inet`.
const FAMILY: Family = Family::Ipv4;
