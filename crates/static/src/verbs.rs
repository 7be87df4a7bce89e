//! The verbs ADD, CHECK and STATUS. DEL and GC have nothing to do.

use anyhow::bail;
use cni::result::IpConfig;
use cni::{AddRequest, AddResult, Answer, Answered, CheckRequest, CniArgs, StatusRequest, note};

use crate::config::{Config, warnings};

/// Returns the addresses that the configuration or the runtime names, and the routes and DNS
/// settings of the configuration.
///
/// # Errors
/// The configuration or `CNI_ARGS` is invalid.
pub(crate) fn add(request: &AddRequest, answer: Answer) -> anyhow::Result<Answered> {
    let config = Config::parse(&request.network, &request.args()?)?;
    Ok(answer.give(&AddResult {
        ips: config.ips,
        routes: config.routes,
        dns: config.dns,
        ..AddResult::default()
    })?)
}

/// Compares the gateway of each configured address, if it has one, with the gateway in
/// `prevResult`. If `prevResult` lacks an address, that is no error, because a later plugin may
/// have removed the address.
///
/// # Errors
/// The configuration is invalid, `prevResult` is missing, or `prevResult` has another gateway for
/// an address.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network, &request.args()?)?;
    let result = request.chained()?;
    cni::step("compare");
    for IpConfig {
        address, gateway, ..
    } in &config.ips
    {
        let Some(wanted) = gateway else { continue };
        let mut reported = result.ips.iter();
        let differs = |it: &&IpConfig| it.address.ip() == address.ip() && it.gateway != *gateway;
        if let Some(it) = reported.find(differs) {
            let found = it.gateway.map_or("none".to_owned(), |it| it.to_string());
            bail!("the gateway of {address} is {found} in prevResult, not {wanted}");
        }
    }
    Ok(())
}

/// Checks only the configuration: runtimes pass neither `CNI_ARGS` nor addresses with STATUS. Logs an
/// address that is there twice on standard error.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    Config::parse(&request.network, &CniArgs::default())?;
    warnings(&request.network.ipam_keys(&["addresses"])?)
        .iter()
        .for_each(note);
    Ok(())
}
