//! Routes of an interface that the kernel deletes with an address, or when a VRF gets or loses the
//! interface. The kernel then adds only routes to the subnets of addresses itself.

use netlink::{Connection, Error, Request, SavedRoute};

/// Returns the routes through the link with the index `link` in all tables but `local`, in the order
/// of their addition: those to gateways come last.
///
/// # Errors
/// [`Error::Refused`].
pub fn link_routes(connection: &Connection, link: u32) -> Result<Vec<SavedRoute>, Error> {
    let mut routes = connection.saved_routes()?;
    routes.retain(|it| it.route.uses(link) && it.route.table != LOCAL);
    routes.sort_by_key(|it| !it.is_direct());
    Ok(routes)
}

/// Gives the link with the index `link` the routes `wanted`, those to gateways last. Removes the
/// routes to subnets that the kernel added to `table` although `wanted` lacks them, because another
/// plugin had replaced them, as far as `is_concerned` accepts them. `table` is the one of the
/// link's VRF, or else `main`.
///
/// # Errors
/// The first refusal. The later routes are still tried.
pub fn restore_routes(
    connection: &Connection,
    (link, table): (u32, u32),
    wanted: &[SavedRoute],
    is_concerned: impl Fn(&SavedRoute) -> bool,
) -> anyhow::Result<()> {
    let is_same = |one: &SavedRoute, other: &SavedRoute| {
        one.is_of_kernel()
            && one.route.destination == other.route.destination
            && one.route.table == other.route.table
    };
    let mut others = link_routes(connection, link)?;
    others.retain(|it| it.route.table == table && it.is_of_kernel() && is_concerned(it));
    others.retain(|it| !wanted.iter().any(|wanted| is_same(wanted, it)));
    let removals: Vec<_> = others.iter().map(|it| it.removal(link)).collect();
    done(connection.attempt(&removals)?)?;
    // The kernel accepts an IPv4 route with a source only if the source is local in the route's table
    // or in the table `local` (`fib_valid_prefsrc`), but in a VRF it is local only in the VRF's table.
    // So routes of other tables need it in theirs for a moment.
    let elsewhere = wanted.iter().filter(|it| it.route.table != table);
    let sources = elsewhere.filter_map(|it| it.local_source(link));
    let (mark, unmark): (Vec<_>, Vec<_>) = match table {
        MAIN_TABLE => (Vec::new(), Vec::new()),
        _ => sources.unzip(),
    };
    let additions = wanted.iter().map(|it| it.restoration(link));
    let requests: Vec<Request> = mark.into_iter().chain(additions).chain(unmark).collect();
    done(connection.attempt(&requests)?)
}

/// Returns the first failure. What exists or is missing already is none.
///
/// # Errors
/// This failure.
pub fn done(outcomes: Vec<Result<(), Error>>) -> anyhow::Result<()> {
    let is_done = |it: &Error| it.is_already_exists() || it.is_not_found();
    let failures = outcomes.into_iter().filter_map(Result::err);
    cni::all(failures.filter(|it| !is_done(it)).map(|it| Err(it.into())))
}

/// Number of the table `main`.
pub const MAIN_TABLE: u32 = 254;

/// Number of the table `local`, whose routes follow from the addresses.
const LOCAL: u32 = 255;
