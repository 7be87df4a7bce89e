//! What an ADD changes in a sandbox: its record, and the way back.

use attach::{SandboxRecord, Witness};
use netlink::{Connection, Monitor, Request, found};
use netns::Netns;
use serde::{Deserialize, Serialize};

use crate::link::Vrf;
use crate::port::{MAIN, Move, Port};

/// The sandbox and the VRF of an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The sandbox, and the name of the interface there.
    pub sandbox: Witness,
    /// Name of the VRF link.
    pub vrf: String,
    /// The table that ADD claimed; `None` if the configuration names it or the VRF existed.
    pub table: Option<u32>,
}

impl SandboxRecord for Record {
    const DIRECTORY: &'static str = "/run/cni/vrf";

    fn sandbox(&self) -> &Witness {
        &self.sandbox
    }

    fn revert(&self, namespace: &Netns, connection: &Connection) -> anyhow::Result<()> {
        if let Some(table) = self.table {
            found(connection.execute([Request::release_table(table)]))?;
        }
        leave((namespace, connection), &self.sandbox.link, &self.vrf)
    }
}

/// Moves the interface out of the VRF called `name`, and deletes the VRF if it has no other port.
pub(crate) fn leave(
    (namespace, connection): (&Netns, &Connection),
    interface: &str,
    name: &str,
) -> anyhow::Result<()> {
    let Some(vrf) = Vrf::find(connection, name)? else {
        return Ok(());
    };
    let link = connection.find_link(interface)?;
    let left = match link.filter(|it| it.master == Some(vrf.index)) {
        Some(link) => {
            let port = Port::read(connection, link.index)?;
            let mut monitor = namespace.run(Monitor::open)??;
            let exit = Move {
                master: 0,
                tables: (vrf.table, MAIN),
            };
            port.change(connection, &mut monitor, exit)
        }
        None => Ok(()),
    };
    cni::all([left, Vrf::delete_if_empty(connection, name)])
}
