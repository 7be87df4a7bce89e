//! ADD: moves the interface into the VRF. A failed ADD moves it back.

use anyhow::bail;
use attach::{MAIN_TABLE, SandboxLock, SandboxRecord as _, Witness, enter};
use cni::{AddRequest, Answer, Answered, Undo};
use netlink::{Connection, Monitor};
use netns::Netns;

use crate::link::Vrf;
use crate::port::{Move, Port};
use crate::{Config, Record};

/// Creates the VRF unless it exists, moves the interface into it, and returns `prevResult`.
/// Completes an earlier ADD that was killed.
///
/// # Errors
/// - The interface has another master.
/// - An error of any step. The rollback has then restored the sandbox.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let config = Config::parse(&request.network)?;
    let result = request.chained()?;
    let (namespace, connection) = enter(&request.netns)?;
    let _lock = SandboxLock::take(&namespace)?;
    let link = connection.link(request.attachment.interface.as_str())?;
    let vrf = Vrf::of(&connection, &config)?;
    if let Some(master) = link
        .master
        .filter(|it| vrf.is_none_or(|vrf| vrf.index != *it))
    {
        bail!(
            "{} has the master {}, so it cannot join {}",
            link.name,
            connection.link_by_index(master)?.name,
            config.name
        );
    }
    let owner = request.attachment.owner();
    let earlier = Record::of_earlier_add(&owner, &connection);
    let moving = earlier.as_ref().and_then(|it| it.moving.clone());
    let port = match (moving.filter(|it| it.link == link.index), link.master) {
        (None, None) => Some(Port::read(&connection, link.index)?),
        (moving, _) => moving,
    };
    let join = Join {
        request,
        config: &config,
        sandbox: (&namespace, &connection),
        owner,
    };
    let mut undo = Undo::default();
    if let Some(port) = port {
        join.run(&port, earlier, &mut undo)?;
    }
    let answered = answer.give(result)?;
    undo.keep();
    Ok(answered)
}

struct Join<'a> {
    request: &'a AddRequest,
    config: &'a Config,
    sandbox: (&'a Netns, &'a Connection),
    /// The attachment's tag.
    owner: String,
}

impl Join<'_> {
    /// Records what the interface has, creates the VRF unless it exists, and moves the interface.
    fn run<'a>(
        &'a self,
        port: &Port,
        earlier: Option<Record>,
        undo: &mut Undo<'a>,
    ) -> anyhow::Result<()> {
        let ((namespace, connection), config) = (self.sandbox, self.config);
        cni::step("create the VRF");
        let interface = self.request.attachment.interface.to_string();
        let mut record = Record {
            sandbox: Witness::new(namespace, connection, interface)?,
            vrf: config.name.to_string(),
            moving: Some(port.clone()),
        };
        undo.push("restore the record", || {
            Record::restore(&self.owner, earlier)
        });
        record.write(&self.owner)?;
        if Vrf::of(connection, config)?.is_none() {
            undo.push("delete the VRF", || {
                Vrf::delete_if_empty(connection, config.name.as_str())
            });
        }
        let vrf = Vrf::make(connection, config)?;
        cni::step("move the interface");
        let mut monitor = namespace.run(Monitor::open)??;
        let entry = Move {
            master: vrf.index,
            tables: (MAIN_TABLE, vrf.table),
        };
        let back = port.clone();
        undo.push("move the interface back", move || {
            back.change(connection, Move::BACK)
        });
        port.change(connection, entry)?;
        port.wait(connection, &mut monitor)?;
        record.moving = None;
        record.write(&self.owner)
    }
}
