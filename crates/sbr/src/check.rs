//! CHECK: compares the rules and tables of the sandbox with the configuration.

use anyhow::ensure;
use attach::{enter, is_rule_of};
use cni::CheckRequest;
use netlink::{Rule, SavedRoute};

use crate::Config;
use crate::desired::{Gateway, Source, is_default, sources};

/// Checks that each address of the interface has a rule, and that the table of an address with a
/// gateway has a default route through the interface. Accepts the tables of the Go plugin, too.
///
/// # Errors
/// - The sandbox or its interface does not exist.
/// - The sandbox differs from the configuration. One error names all differences.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network)?;
    let (result, interface) = (request.chained()?, &request.attachment.interface);
    let sources = sources(&config, result, interface)?;
    cni::step("compare");
    let (_, connection) = enter(&request.netns)?;
    let link = connection.link(interface.as_str())?.index;
    let rules = connection.rules()?;
    let routes = connection.saved_routes()?.into_iter();
    let routes: Vec<_> = routes.filter(|it| it.route.uses(link)).collect();
    let sources = sources.iter();
    let found = sources.filter_map(|it| difference(&config, it, (&rules, &routes)));
    let found = found.collect::<Vec<_>>().join("; ");
    ensure!(
        found.is_empty(),
        "{interface}: {found}; see `ip rule` in the sandbox"
    );
    Ok(())
}

/// Returns a message if `rules` and `routes`, those of the interface, lack something of `source`.
fn difference(
    config: &Config,
    source: &Source,
    (rules, routes): (&[Rule], &[SavedRoute]),
) -> Option<String> {
    let from = source.address.ip();
    let tables = rules.iter().filter(|it| is_rule_of(from, it));
    let mut tables = tables.map(|it| it.table);
    let has_default = |table: u32| {
        let mut routes = routes.iter();
        routes.any(|it| it.route.table == table && is_default(source, it))
    };
    match (config, source.gateway) {
        (Config::Shared(table), _) => (!tables.any(|it| it == *table))
            .then(|| format!("no rule `from {from} lookup {table}`")),
        (Config::Own { .. }, Gateway::None) => tables
            .next()
            .is_none()
            .then(|| format!("no rule `from {from}`")),
        (Config::Own { .. }, _) => (!tables.any(has_default))
            .then(|| format!("no rule `from {from}` for a table with a default route")),
    }
}
