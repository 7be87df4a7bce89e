//! ADD: gives each address of the interface its table and its rule. A failed ADD reverts that.

use anyhow::Context as _;
use attach::{Ruled, SandboxLock, SandboxRecord as _, Witness, enter, is_rule_of, make};
use cni::{AddRequest, Answer, Answered, Undo, note};
use netlink::{Connection, Rule};

use crate::desired::{self, Routes, Source};
use crate::{Config, Record};

/// Adds rules and tables for the addresses of the interface in `prevResult`, and returns this
/// result, with the default routes of configured gateways.
///
/// # Errors
/// An error of any step. The rollback has then restored the sandbox.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let config = Config::parse(&request.network)?;
    let (result, attachment) = (request.chained()?, &request.attachment);
    let interface = &attachment.interface;
    let sources = desired::sources(&config, result, interface)?;
    let (namespace, connection) = enter(&request.netns)?;
    let _lock = SandboxLock::take(&namespace)?;
    let link = connection.link(interface.as_str())?.index;
    if sources.is_empty() {
        let nothing = "so there is nothing to route";
        note(format_args!(
            "prevResult has no address of {interface}, {nothing}"
        ));
        return Ok(answer.give(result)?);
    }
    let owner = attachment.owner();
    let earlier = Record::of_earlier_add(&owner, &connection);
    let sandbox = Witness::new(&namespace, &connection, interface.to_string())?;
    let rules = earlier.as_ref().map(|it| it.rules.clone());
    let rules = rules.unwrap_or_default();
    let mut record = Record { sandbox, rules };
    cni::step("choose tables");
    let rules = connection.rules()?;
    let assigned = tables(&connection, &config, sources, (&record.rules, &rules))?;
    let wanted = wanted(&assigned, &config);
    record.note(&wanted);
    let mut undo = Undo::default();
    undo.push("restore the record", || Record::restore(&owner, earlier));
    record.write(&owner)?;
    cni::step("change rules and routes");
    let routes = routes(&connection, link, &config)?;
    let fills = routes.iter().flat_map(|it| it.fills(&assigned)).collect();
    make(&connection, fills, (&mut undo, "empty the tables"))?;
    let rules = Ruled::additions(&wanted, &rules);
    make(&connection, rules, (&mut undo, "delete the rules"))?;
    let clears = routes.iter().flat_map(|it| it.clears(&assigned)).collect();
    make(&connection, clears, (&mut undo, "restore the table main"))?;
    Ok(answer.give_and_keep(&config.reported(result), undo)?)
}

/// Returns the routes through the link with this index; `None` if ADD changes no routes.
fn routes(connection: &Connection, link: u32, config: &Config) -> anyhow::Result<Option<Routes>> {
    let Config::Own { main, .. } = *config else {
        return Ok(None);
    };
    let mut all = connection.saved_routes()?;
    all.retain(|it| it.route.uses(link));
    Ok(Some(Routes { link, all, main }))
}

/// Returns the table of each source: the configured one, that of an earlier ADD unless another
/// interface has taken it since, or a free one.
fn tables(
    connection: &Connection,
    config: &Config,
    sources: Vec<Source>,
    (recorded, rules): (&[Ruled], &[Rule]),
) -> anyhow::Result<Vec<(Source, u32)>> {
    if let Config::Shared(table) = *config {
        return Ok(sources.into_iter().map(|it| (it, table)).collect());
    }
    let free = connection.free_tables(FIRST_TABLE, rules)?;
    let mut free = free.filter(|table| recorded.iter().all(|it| it.table != *table));
    let assigned = sources.into_iter().map(|source| {
        let from = source.address.ip();
        let is_kept = |it: &&Ruled| {
            let mut users = rules.iter().filter(|rule| rule.table == it.table);
            it.from == from && it.is_own && users.all(|rule| is_rule_of(from, rule))
        };
        let kept = recorded.iter().find(is_kept).map(|it| it.table);
        let table = kept.or_else(|| free.next());
        let table = table.context("no number of a routing table is free")?;
        Ok((source, table))
    });
    assigned.collect()
}

/// Returns the rule of each source.
fn wanted(assigned: &[(Source, u32)], config: &Config) -> Vec<Ruled> {
    let rule = |(source, table): &(Source, u32)| Ruled {
        from: source.address.ip(),
        table: *table,
        is_own: matches!(config, Config::Own { .. }),
    };
    assigned.iter().map(rule).collect()
}

/// The first table that ADD may choose, as for the Go plugin.
const FIRST_TABLE: u32 = 100;
