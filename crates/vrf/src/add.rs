//! ADD: moves the interface into the VRF. A failed ADD moves it back.

use anyhow::bail;
use attach::{SandboxRecord as _, Witness, enter};
use cni::{AddRequest, Answer, Answered, Undo};
use netlink::{Connection, Monitor};
use netns::Netns;

use crate::link::Vrf;
use crate::port::{MAIN, Move, Port};
use crate::{Config, Record};

/// Creates the VRF unless it exists, moves the interface into it, and returns `prevResult`.
///
/// # Errors
/// - The interface has another master.
/// - An error of any step. The rollback has then restored the sandbox.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let config = Config::parse(&request.network)?;
    let result = request.chained()?;
    let (namespace, connection) = enter(&request.netns)?;
    let link = connection.link(request.attachment.interface.as_str())?;
    let there = Vrf::of(&connection, &config)?;
    let mut undo = Undo::default();
    match link.master {
        None => {
            let vrf = make(request, &connection, (&config, there), &mut undo)?;
            join(&namespace, &connection, (link.index, vrf), &mut undo)?;
        }
        // An earlier ADD has moved it.
        Some(master) if there.is_some_and(|it| it.index == master) => {}
        Some(master) => bail!(
            "{} has the master {}, so it cannot join {}",
            link.name,
            connection.link_by_index(master)?.name,
            config.name
        ),
    }
    let answered = answer.give(result)?;
    undo.keep();
    Ok(answered)
}

/// Writes the record, and returns the VRF, which it creates unless it is `there`.
fn make<'a>(
    request: &AddRequest,
    connection: &'a Connection,
    (config, there): (&'a Config, Option<Vrf>),
    undo: &mut Undo<'a>,
) -> anyhow::Result<Vrf> {
    cni::step("create the VRF");
    let owner = request.attachment.owner();
    let interface = request.attachment.interface.to_string();
    let record = Record {
        sandbox: Witness::new(&request.netns, connection, interface)?,
        vrf: config.name.to_string(),
        table: None,
    };
    let recorded = owner.clone();
    undo.push("remove the record", move || {
        Record::files().retire(&recorded).remove()
    });
    record.write(&owner)?;
    if there.is_none() {
        undo.push("delete the VRF", || {
            Vrf::delete_if_empty(connection, config.name.as_str())
        });
    }
    Vrf::make(connection, config, |table| {
        let table = Some(table);
        Record {
            table,
            ..record.clone()
        }
        .write(&owner)
    })
}

/// Moves the interface with the index `link` into the VRF.
fn join<'a>(
    namespace: &Netns,
    connection: &'a Connection,
    (link, vrf): (u32, Vrf),
    undo: &mut Undo<'a>,
) -> anyhow::Result<()> {
    cni::step("move the interface");
    let port = Port::read(connection, link)?;
    let mut monitor = namespace.run(Monitor::open)??;
    let entry = Move {
        master: vrf.index,
        tables: (MAIN, vrf.table),
    };
    let moved = port.change(connection, &mut monitor, entry);
    undo.push("move the interface back", move || {
        port.change(connection, &mut monitor, Move::BACK)
    });
    moved
}
