//! The verbs. They always act on the interface `lo` and ignore `CNI_IFNAME`.

use std::path::Path;

use anyhow::{bail, ensure};
use cni::result::{AddResult, Interface, IpConfig};
use cni::{AddRequest, Answer, Answered, CheckRequest, DelRequest, Error, Network, Undo};
use netlink::{Address, Connection, Link, LinkChange, Request, found};
use netns::Netns;
use serde::Deserialize;

/// Brings `lo` up. Returns the result of earlier plugins unchanged. If there is none, returns the
/// addresses of `lo`. Fails if `lo` has an address that is no loopback address.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    expect_no_keys(&request.network)?;
    cni::step("look into the sandbox");
    let connection = connect(&request.netns)?;
    let link = connection.link(LO)?;
    let before = connection.addresses(link.index)?;
    if let Some(alien) = before.iter().find(|it| !it.address.ip().is_loopback()) {
        bail!(
            "{LO} in the sandbox has {}, which is no loopback address",
            alien.address
        );
    }
    let mut undo = Undo::default();
    if !link.is_up {
        undo.push("take lo down", || Ok(set(&connection, &LinkChange::Down)?));
    }
    cni::step("bring lo up");
    set(&connection, &LinkChange::Up)?;
    let addresses = connection.addresses(link.index)?;
    let sandbox = request.netns.to_string_lossy().into_owned();
    let prev_result = request.prev_result.clone();
    let made = || result(&link, sandbox, &addresses);
    Ok(answer.give_and_keep(&prev_result.unwrap_or_else(made), undo)?)
}

/// Brings `lo` down, if the namespace still exists. A process in the sandbox may have renamed it.
pub(crate) fn del(request: &DelRequest) -> anyhow::Result<()> {
    let Some(path) = &request.netns else {
        return Ok(());
    };
    cni::step("take lo down");
    match Connection::open_if_present(path)? {
        Some((_, connection)) => Ok(found(set(&connection, &LinkChange::Down)).map(drop)?),
        None => Ok(()),
    }
}

/// Checks that `lo` is up. CHECK needs no `prevResult`.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    expect_no_keys(&request.network)?;
    cni::step("compare");
    let link = connect(&request.netns)?.link(LO)?;
    ensure!(link.is_up, "{LO} in the sandbox is down");
    Ok(())
}

/// Names the configuration keys that CNI does not define, in one line on standard error, because
/// this plugin has no keys of its own. Such keys are no error.
pub(crate) fn expect_no_keys(network: &Network) -> anyhow::Result<()> {
    #[derive(Deserialize)]
    struct NoKeys {}
    let NoKeys {} = network.config()?;
    Ok(())
}

fn connect(netns: &Path) -> Result<Connection, Error> {
    let namespace = Netns::open(netns).map_err(netlink::Error::from);
    let connection = namespace.and_then(|namespace| Connection::open_in(&namespace));
    connection.map_err(Error::sandbox)
}

fn set(connection: &Connection, change: &LinkChange<'_>) -> Result<(), netlink::Error> {
    connection.execute(vec![Request::change_link(LO, change)])
}

fn result(link: &Link, sandbox: String, addresses: &[Address]) -> AddResult {
    let interface = Interface {
        name: link.name.clone(),
        mac: link.mac.map(|mac| mac.to_string()),
        sandbox: Some(sandbox),
        ..Interface::default()
    };
    let ips = addresses.iter().map(|it| IpConfig {
        interface: Some(0),
        ..IpConfig::of(it.address)
    });
    AddResult {
        interfaces: vec![interface],
        ips: ips.collect(),
        ..AddResult::default()
    }
}

const LO: &str = "lo";
