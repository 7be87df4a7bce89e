//! STATUS: reports whether an ADD can succeed.

use attach::MAX_PORTS;
use cni::{Error, StatusRequest, Verb, note};
use netlink::Connection;

use crate::bridge;
use crate::config::Config;

/// Checks whether an ADD can succeed, and runs STATUS of the IPAM plugin.
///
/// # Errors
/// The configuration is invalid. Code 50: the bridge's name belongs to another kind of link, or the
/// kernel lacks the `nf_tables` that the configuration needs. Code 50 also for a bridge without a
/// free port if `statusWhenFull` is "fail".
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

/// Number of ports that causes a warning: nine of ten.
const NEARLY_FULL: usize = MAX_PORTS * 9 / 10;
