//! What a sandbox shall have: tables and rules for the addresses of its interface.

use std::collections::BTreeMap;
use std::net::IpAddr;

use attach::{MAIN_TABLE, Reversible};
use cni::{AddResult, Error, InterfaceName};
use ipnetwork::IpNetwork;
use netlink::{IpVersion, NewRoute, Request, SavedRoute, network_of};

use crate::Config;
use crate::config::MainTable;

/// An address of the interface, and where its packets go that no other route matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    /// The address with its prefix length.
    pub address: IpNetwork,
    pub gateway: Gateway,
}

/// The gateway of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gateway {
    /// The configuration names it, so default routes by others do not count.
    Configured(IpAddr),
    /// The result names it. It counts if the interface has no default route.
    Reported(IpAddr),
    None,
}

/// Returns the addresses of `interface` in `result`, with their gateways.
///
/// # Errors
/// Code 7: the result has no address at all.
pub(crate) fn sources(
    config: &Config,
    result: &AddResult,
    interface: &InterfaceName,
) -> Result<Vec<Source>, Error> {
    if result.ips.is_empty() {
        let reason = format!(
            "{interface} has no address, so there is no source to route by; place sbr after a plugin \
             with ipam"
        );
        return Err(Error::invalid("prevResult.ips", reason));
    }
    let configured = match config {
        Config::Own { gateways, .. } => gateways.as_slice(),
        Config::Shared(_) => &[],
    };
    Ok(result
        .addresses_of(interface)
        .map(|it| {
            let is_same = |gateway: &&IpAddr| gateway.is_ipv4() == it.address.is_ipv4();
            let configured = configured.iter().find(is_same).copied();
            let reported = it.gateway.map_or(Gateway::None, Gateway::Reported);
            Source {
                address: it.address,
                gateway: configured.map_or(reported, Gateway::Configured),
            }
        })
        .collect())
}

/// The routes of the interface, as they are.
pub(crate) struct Routes {
    /// Index of the interface.
    pub link: u32,
    /// The routes through the interface in all tables.
    pub all: Vec<SavedRoute>,
    /// Which of them the table `main` keeps.
    pub main: MainTable,
}

impl Routes {
    /// Returns the changes that give each source's table its routes.
    pub fn fills(&self, assigned: &[(Source, u32)]) -> Vec<Reversible> {
        let sources: Vec<_> = assigned.iter().map(|it| &it.0).collect();
        let fill = |(source, table): &(Source, u32)| self.fill(*table, source, &sources);
        assigned.iter().flat_map(fill).collect()
    }

    /// Returns the changes that give `table` the routes of `source`. Those without a gateway come
    /// first, because the kernel looks for the others' gateways there.
    fn fill(&self, table: u32, source: &Source, sources: &[&Source]) -> Vec<Reversible> {
        let mut routes: Vec<_> = self.of_main().collect();
        routes.retain(|it| is_route_of(source, sources, it));
        routes.sort_by_key(|it| !it.is_direct());
        let parts = routes.iter().filter_map(|it| it.through(self.link));
        let copies = parts.map(|it| it.in_table(table));
        let copies = copies.map(|it| Reversible::addition(it.addition(), it.removal(self.link)));
        let mut changes: Vec<_> = copies.collect();
        let is_there = |it: &SavedRoute| it.route.table == table && is_default(source, it);
        let has_default = routes.iter().any(|it| is_default(source, it));
        let gateway = match source.gateway {
            Gateway::Configured(gateway) => Some(gateway),
            Gateway::Reported(gateway) => Some(gateway).filter(|_| !has_default),
            Gateway::None => None,
        };
        if let Some(gateway) = gateway.filter(|_| !self.all.iter().any(is_there)) {
            let everything = IpVersion::of(source.address.ip()).every_address();
            changes.push(addition(&NewRoute {
                gateway: Some(gateway),
                table: Some(table),
                ..NewRoute::on_link(everything, self.link)
            }));
        }
        changes
    }

    /// Returns the changes that remove from the table `main` what it shall not keep.
    pub fn clears(&self, assigned: &[(Source, u32)]) -> Vec<Reversible> {
        let sources = assigned.iter().map(|it| &it.0);
        let hints: BTreeMap<_, _> = match self.main {
            MainTable::Nothing => BTreeMap::new(),
            MainTable::Subnets => sources
                .map(|it| (network_of(it.address), it.address.ip()))
                .collect(),
        };
        let is_kept = |it: &SavedRoute| match self.main {
            MainTable::Nothing => is_link_local(it),
            MainTable::Subnets => it.is_direct() && !hints.contains_key(&it.route.destination),
        };
        // A rollback first restores what is removed last: the routes to the others' gateways.
        let mut removed: Vec<_> = self.of_main().filter(|it| !is_kept(it)).collect();
        removed.sort_by_key(|it| it.is_direct());
        let restored = |it: &SavedRoute| it.restoration(self.link);
        let removed = removed.into_iter();
        let removed = removed.map(|it| Reversible::removal(it.removal(self.link), restored(it)));
        let hints = hints.iter().map(|(subnet, source)| {
            addition(&NewRoute {
                source: Some(*source),
                ..NewRoute::on_link(*subnet, self.link)
            })
        });
        removed.chain(hints).collect()
    }

    fn of_main(&self) -> impl Iterator<Item = &SavedRoute> {
        self.all.iter().filter(|it| it.route.table == MAIN_TABLE)
    }
}

/// Returns whether `route` is for packets from `source`: its gateway or source is in this source's
/// subnet, or in no source's.
fn is_route_of(source: &Source, sources: &[&Source], route: &SavedRoute) -> bool {
    let ends = [route.source, route.route.gateway];
    let is_in = |it: &Source| ends.iter().flatten().any(|end| it.address.contains(*end));
    let is_replaced = matches!(source.gateway, Gateway::Configured(_)) && is_default(source, route);
    route.route.destination.is_ipv4() == source.address.is_ipv4()
        && !is_replaced
        && (is_in(source) || !sources.iter().any(|it| is_in(it)))
}

/// Returns whether `route` is a default route for packets from `source`.
pub(crate) fn is_default(source: &Source, route: &SavedRoute) -> bool {
    route.route.is_default() && route.route.destination.is_ipv4() == source.address.is_ipv4()
}

fn addition(route: &NewRoute) -> Reversible {
    Reversible::addition(Request::add_route(route), Request::delete_route(route))
}

fn is_link_local(route: &SavedRoute) -> bool {
    matches!(route.route.destination, IpNetwork::V6(it) if it.network().is_unicast_link_local())
}
