//! DEL and GC: delete rules, and the routes of the attachment's own tables.

use std::net::IpAddr;

use attach::{SandboxLock, SandboxRecord as _, enter_if_present};
use cni::{DelRequest, GOING_ON, GcRequest, or_note};
use serde::Deserialize;

use crate::desired::{addresses, is_rule_of};
use crate::record::{Record, delete_rules};

/// Deletes the rules and routes that ADD recorded, and the record.
///
/// # Errors
/// The sandbox cannot be entered, or the record cannot be read or removed.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    cni::step("remove rules and tables");
    Record::del(request, remove_unrecorded)
}

/// GC: removes rules and tables of the attachments of this network that the runtime does not list.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    cni::step("remove rules and tables");
    Record::gc(request)
}

/// Deletes the rules for addresses of the interface, as the Go plugin does.
fn remove_unrecorded(request: &DelRequest) -> anyhow::Result<()> {
    let keys = request.network.quiet_config().map(|it: Keys| it.table);
    let table = or_note(keys, GOING_ON).flatten();
    let interface = &request.attachment.interface;
    let Some((namespace, connection)) = enter_if_present(request.netns.as_deref())? else {
        return Ok(());
    };
    let _lock = SandboxLock::take(&namespace)?;
    let link = connection.find_link(interface.as_str())?;
    let there = link.map(|it| connection.addresses(it.index)).transpose()?;
    let there = there.iter().flatten().map(|it| it.address.ip());
    let reported = request.prev_result.iter();
    let reported = reported.flat_map(|it| addresses(it, interface));
    let sources: Vec<IpAddr> = there.chain(reported.map(|it| it.address.ip())).collect();
    delete_rules(&connection, |rule| {
        let is_in_table = table.is_none_or(|table| rule.table == table);
        is_in_table && sources.iter().any(|it| is_rule_of(*it, rule))
    })
}

/// The only key that DEL needs, if there is no record.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Keys {
    table: Option<u32>,
}
