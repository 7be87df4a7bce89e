//! What an ADD changes in a sandbox: its record, and the way back.

use attach::{MAIN_TABLE, SandboxRecord, Witness};
use cni::{DelRequest, GOING_ON, or_note};
use netlink::Connection;
use serde::{Deserialize, Serialize};

use crate::Config;
use crate::link::Vrf;
use crate::port::{Move, Port};

/// The sandbox and the VRF of an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The sandbox, and the name of the interface there.
    pub sandbox: Witness,
    /// Name of the VRF link.
    pub vrf: String,
    /// What the interface had before ADD moved it; `None` after the move.
    pub(crate) moving: Option<Port>,
}

impl SandboxRecord for Record {
    const DIRECTORY: &'static str = "/run/cni/vrf";
    const STEP: &'static str = "move the interface out of the VRF";

    fn sandbox(&self) -> &Witness {
        &self.sandbox
    }

    fn revert(&self, connection: &Connection) -> anyhow::Result<()> {
        let interface = &self.sandbox.link;
        leave(connection, interface, (&self.vrf, self.moving.as_ref()))
    }

    /// Finds the VRF by the configuration.
    fn revert_unrecorded(request: &DelRequest, connection: &Connection) -> anyhow::Result<()> {
        let Some(config) = or_note(Config::parse(&request.network), GOING_ON) else {
            return Ok(());
        };
        let interface = request.attachment.interface.as_str();
        leave(connection, interface, (config.name.as_str(), None))
    }
}

/// Moves the interface out of the VRF called `name`, and deletes the VRF if it has no other port.
/// `moving` is what the interface had if ADD was killed during the move.
pub(crate) fn leave(
    connection: &Connection,
    interface: &str,
    (name, moving): (&str, Option<&Port>),
) -> anyhow::Result<()> {
    let vrf = Vrf::find(connection, name)?;
    let Some(link) = connection.find_link(interface)? else {
        return Vrf::delete_if_empty(connection, name);
    };
    let vrf = vrf.filter(|it| link.master == Some(it.index));
    let moving = moving.filter(|it| it.link == link.index);
    let left = match (vrf, moving) {
        (Some(_), Some(port)) => port.change(connection, Move::BACK),
        (None, Some(port)) if link.master.is_none() => port.change(connection, Move::BACK),
        (Some(vrf), None) => {
            let port = Port::read(connection, link.index)?;
            let exit = Move {
                master: 0,
                tables: (vrf.table, MAIN_TABLE),
            };
            port.change(connection, exit)
        }
        (None, _) => Ok(()),
    };
    cni::all([left, Vrf::delete_if_empty(connection, name)])
}
