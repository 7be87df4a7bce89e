//! ADD: gives each address of the interface its table and its rule. A failed ADD reverts that.

use std::net::IpAddr;

use attach::{ClaimedTable, Reverts, SandboxRecord as _, Witness, enter};
use cni::{AddRequest, Answer, Answered, Undo, note};
use netlink::{Connection, Request, Rule};

use crate::Config;
use crate::desired::{self, Routes, Source, is_rule_of};
use crate::record::{Record, Ruled, delete_rules, restore};

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
    let (_, connection) = enter(&request.netns)?;
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
    drop(adding);
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
    /// The tables that this ADD has claimed.
    claimed: Vec<ClaimedTable<'a>>,
}

impl<'a> Adding<'a> {
    /// Continues the record of an earlier ADD of the attachment in this sandbox, if there is one.
    fn new(
        connection: &'a Connection,
        owner: String,
        sandbox: Witness,
        undo: &mut Undo<'a>,
    ) -> Self {
        let text = Record::files().find_also_retired(&owner);
        let former = text.as_deref().and_then(Record::read);
        let former = former.filter(|it| {
            let is_same = it.sandbox.is_of(connection, &sandbox.netns);
            is_same.is_ok_and(|it| it)
        });
        let recorded = owner.clone();
        undo.push("restore the record", move || restore(&recorded, text));
        Self {
            connection,
            owner,
            record: Record {
                sandbox,
                rules: former.map(|it| it.rules).unwrap_or_default(),
            },
            claimed: Vec::new(),
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
                (Config::Own { .. }, Some(table)) => table,
                (Config::Own { .. }, None) => self.claim(from, first)?,
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

    /// Claims a free table for `from`. Records each table before it tries to claim it.
    fn claim(&mut self, from: IpAddr, first: u32) -> anyhow::Result<u32> {
        let before = self.record.rules.len();
        let (owner, record) = (&self.owner, &mut self.record);
        let claimed = ClaimedTable::new(self.connection, first, |table| {
            record.rules.truncate(before);
            record.rules.push(Ruled {
                from,
                table,
                is_own: true,
            });
            record.write(owner)
        })?;
        let number = claimed.number;
        self.claimed.push(claimed);
        Ok(number)
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
