//! DEL and GC: delete rules, and the routes of the attachment's own tables.

use std::net::IpAddr;
use std::path::Path;

use cni::{DelRequest, GOING_ON, GcRequest, note, note_failure, or_note};
use netlink::{Connection, Request, Rule, found};
use serde::Deserialize;

use crate::desired::{addresses, is_rule_of};
use crate::record::{self, Record};

/// Deletes the rules and routes that ADD recorded, and the record. An ADD of the Go plugin has no
/// record; then DEL deletes what the Go plugin deletes: the rules for the interface's addresses.
///
/// DEL only reports what it cannot delete in the sandbox, because a process there could otherwise
/// make DEL fail for ever.
///
/// # Errors
/// The record cannot be read or removed.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    cni::step("remove rules and tables");
    let owner = request.attachment.owner();
    if record::files().find_also_retired(&owner).is_none() {
        note_failure(remove_unrecorded(request));
    }
    remove(&owner, request.netns.as_deref())
}

/// GC: removes rules and tables of the attachments of this network that the runtime does not list.
pub(crate) fn gc(request: &GcRequest) -> anyhow::Result<()> {
    cni::step("remove rules and tables");
    let is_stale = request.stale();
    let owners = record::files().owners()?;
    cni::all(owners.iter().filter(|it| is_stale(it)).map(|owner| {
        note(format_args!(
            "remove rules and tables of {owner}, which the runtime does not list"
        ));
        remove(owner, None)
    }))
}

fn remove(owner: &str, netns: Option<&Path>) -> anyhow::Result<()> {
    let retired = record::files().retire(owner);
    if let Some(record) = retired.text().and_then(Record::read) {
        note_failure(remove_recorded(&record, netns));
    }
    retired.remove()
}

/// Removes what the record lists from the sandbox of ADD, if this still exists.
fn remove_recorded(record: &Record, netns: Option<&Path>) -> anyhow::Result<()> {
    let Some(connection) = record.sandbox.connect(netns)? else {
        return Ok(());
    };
    let rules = delete_rules(&connection, |rule| {
        let mut recorded = record.rules.iter();
        recorded.any(|it| it.table == rule.table && is_rule_of(it.from, rule))
    });
    let own = || record.rules.iter().filter(|it| it.is_own);
    let mut requests: Vec<_> = own().map(|it| Request::release_table(it.table)).collect();
    if let Some(link) = connection.find_link(&record.sandbox.link)? {
        let routes = connection.saved_routes()?.into_iter();
        let routes = routes.filter_map(|it| it.through(link.index));
        let routes = routes.filter(|route| own().any(|it| it.table == route.route.table));
        requests.extend(routes.map(|it| it.removal(link.index)));
    }
    let outcomes = connection.attempt(&requests)?.into_iter();
    let routes = cni::all(outcomes.map(|it| Ok(found(it).map(drop)?)));
    cni::all([rules, routes])
}

/// Deletes the rules for addresses of the interface, as the Go plugin does.
fn remove_unrecorded(request: &DelRequest) -> anyhow::Result<()> {
    let keys = request.network.quiet_config().map(|it: Keys| it.table);
    let table = or_note(keys, GOING_ON).flatten();
    let (netns, interface) = (request.netns.as_deref(), &request.attachment.interface);
    let Some((namespace, _)) = netns
        .map(Connection::open_if_present)
        .transpose()?
        .flatten()
    else {
        return Ok(());
    };
    let connection = namespace.run(Connection::open_wary)??;
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

/// Deletes the rules that `is_ours` accepts.
pub(crate) fn delete_rules(
    connection: &Connection,
    is_ours: impl Fn(&Rule) -> bool,
) -> anyhow::Result<()> {
    let rules = connection.rules()?.into_iter().filter(|it| is_ours(it));
    let deletions = rules.filter_map(|it| Some(Request::delete_rule(it.from?, &it)));
    let deletions: Vec<_> = deletions.collect();
    let outcomes = connection.attempt(&deletions)?.into_iter();
    cni::all(outcomes.map(|it| Ok(found(it).map(drop)?)))
}

/// The only key that DEL needs, if there is no record.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Keys {
    table: Option<u32>,
}
