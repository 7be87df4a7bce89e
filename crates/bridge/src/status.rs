//! STATUS: checks whether an ADD can succeed.

use attach::MAX_PORTS;
use cni::{Error, StatusRequest, Verb, note};
use netlink::Connection;

use crate::bridge;
use crate::config::Config;

/// Checks the configuration, the kernel and the bridge, then calls STATUS of the IPAM plugin.
///
/// # Errors
/// The configuration is invalid. Code 50: another kind of link has the bridge's name, or the kernel
/// lacks a part of `nf_tables` that the configuration needs. Code 50 also if the bridge has no free
/// port and `statusWhenFull` is "fail".
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    let config = Config::of_network(&request.network)?;
    config.guard().probe()?;
    let connection = Connection::open()?;
    if let Some(link) = connection.find_link(config.bridge.as_str())? {
        let unavailable = |error: Error| Error::Unavailable(error.to_string());
        bridge::expect_bridge(&link).map_err(unavailable)?;
        let ports = connection.port_count(link.index)?;
        if ports >= MAX_PORTS {
            let reason = attach::no_port_left(&link).to_string();
            config.when_full.report(reason)?;
        } else if ports >= NEARLY_FULL {
            let most = MAX_PORTS;
            note(format_args!(
                "bridge {} has {ports} of at most {most} ports",
                link.name
            ));
        }
    }
    cni::step("ask the IPAM plugin");
    attach::forward(&request.network, Verb::Status)
}

/// Number of ports at which STATUS warns: 90 % of the maximum.
const NEARLY_FULL: usize = MAX_PORTS * 9 / 10;
