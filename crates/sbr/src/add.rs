//! ADD: gives each address of the interface its table and its rule. A failed ADD reverts that.

use std::net::IpAddr;

use attach::{Reverts, SandboxLock, SandboxRecord as _, Witness, enter};
use cni::{AddRequest, Answer, Answered, Undo, note};
use netlink::{Connection, Request, Rule};

use crate::Config;
use crate::desired::{self, Routes, Source, is_rule_of};
use crate::record::{Record, Ruled, delete_rules};

/// Adds rules and tables for the addresses of the interface in `prevResult`, and returns this
/// result.
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
    let sandbox = Witness::new(&request.netns, &connection, interface.to_string())?;
    let (mut fills, mut clears) = (Reverts::default(), Reverts::default());
    let mut undo = Undo::default();
    let mut adding = Adding::new(&connection, attachment.owner(), sandbox, &mut undo);
    let assigned = adding.tables(&config, sources)?;
    cni::step("change rules and routes");
    let routes = routes(&connection, link, &config)?;
    let changes = routes.as_ref().map(|it| it.fills(&assigned));
    let filled = fills.make(&connection, changes.unwrap_or_default());
    undo.push("empty the tables", || fills.run(&connection));
    filled?;
    adding.add_rules(&assigned, &mut undo)?;
    let changes = routes.as_ref().map(|it| it.clears(&assigned));
    let cleared = clears.make(&connection, changes.unwrap_or_default());
    undo.push("restore the table main", || clears.run(&connection));
    cleared?;
    let answered = answer.give(result)?;
    undo.keep();
    Ok(answered)
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

/// An ADD, and what it has recorded so far.
struct Adding<'a> {
    connection: &'a Connection,
    /// The attachment's tag.
    owner: String,
    record: Record,
}

impl<'a> Adding<'a> {
    /// Continues the record of an earlier ADD of the attachment in this sandbox, if there is one.
    fn new(
        connection: &'a Connection,
        owner: String,
        sandbox: Witness,
        undo: &mut Undo<'a>,
    ) -> Self {
        let former = Record::of_earlier_add(&owner, connection);
        let rules = former.as_ref().map(|it| it.rules.clone());
        let recorded = owner.clone();
        undo.push("restore the record", move || {
            Record::restore(&recorded, former)
        });
        Self {
            connection,
            owner,
            record: Record {
                sandbox,
                rules: rules.unwrap_or_default(),
            },
        }
    }

    /// Chooses the table of each source and records it.
    fn tables(
        &mut self,
        config: &Config,
        sources: Vec<Source>,
    ) -> anyhow::Result<Vec<(Source, u32)>> {
        cni::step("choose tables");
        let (mut assigned, mut first) = (Vec::new(), FIRST_TABLE);
        for source in sources {
            let from = source.address.ip();
            let mut former = self.record.rules.iter();
            let former = former.find(|it| it.from == from && it.is_own);
            let table = match (config, former.map(|it| it.table)) {
                (Config::Shared(table), _) => self.shared(from, *table)?,
                (Config::Own { .. }, Some(table)) if self.is_kept(from, table)? => table,
                (Config::Own { .. }, _) => self.free(from, first)?,
            };
            first = table.saturating_add(1);
            assigned.push((source, table));
        }
        Ok(assigned)
    }

    fn shared(&mut self, from: IpAddr, table: u32) -> anyhow::Result<u32> {
        self.record(Ruled {
            from,
            table,
            is_own: false,
        })?;
        Ok(table)
    }

    /// Returns whether no other interface has taken the table since an earlier ADD recorded it.
    fn is_kept(&self, from: IpAddr, table: u32) -> anyhow::Result<bool> {
        let rules = self.connection.rules()?;
        let mut rules = rules.iter().filter(|it| it.table == table);
        Ok(rules.all(|it| is_rule_of(from, it)))
    }

    /// Returns a free table for `from`, and records it. The sandbox is locked.
    fn free(&mut self, from: IpAddr, first: u32) -> anyhow::Result<u32> {
        let table = self.connection.free_table(first)?;
        self.record(Ruled {
            from,
            table,
            is_own: true,
        })?;
        Ok(table)
    }

    fn record(&mut self, ruled: Ruled) -> anyhow::Result<()> {
        if !self.record.rules.contains(&ruled) {
            self.record.rules.push(ruled);
        }
        self.record.write(&self.owner)
    }

    fn add_rules(&self, assigned: &[(Source, u32)], undo: &mut Undo<'a>) -> anyhow::Result<()> {
        let connection = self.connection;
        let rules = connection.rules()?;
        for (source, table) in assigned {
            let (from, table) = (source.address.ip(), *table);
            let is_same = move |it: &Rule| it.table == table && is_rule_of(from, it);
            if !rules.iter().any(is_same) {
                undo.push("delete the rule", move || delete_rules(connection, is_same));
                connection.execute([Request::add_rule(from, table)])?;
            }
        }
        Ok(())
    }
}

/// The first table that ADD may choose, as for the Go plugin.
const FIRST_TABLE: u32 = 100;
