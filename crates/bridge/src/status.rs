//! STATUS: could an ADD succeed?

use cni::{Error, StatusRequest, Verb, note};
use netlink::Connection;

use crate::config::Config;
use crate::{del, firewall, host};

/// Says whether an ADD could succeed, and asks the delegate the same.
///
/// # Errors
/// The configuration makes no sense; code 50: the bridge's name belongs to something else,
/// it has no port left where `statusWhenFull` is "fail", or the kernel lacks the `nf_tables`
/// that the configuration needs.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    let config = Config::of_network(&request.network)?;
    firewall::probe(&config)?;
    let connection = Connection::open()?;
    if let Some(link) = connection.find_link(config.bridge.as_str())? {
        let unavailable = |error: Error| Error::Unavailable {
            reason: error.to_string(),
        };
        host::expect_bridge(&link).map_err(unavailable)?;
        let ports = connection.port_count(link.index)?;
        if ports >= host::MOST_PORTS {
            let reason = host::no_port_left(&link).to_string();
            config.when_full.report(reason)?;
        } else if ports >= NEARLY_FULL {
            let most = host::MOST_PORTS;
            note(format_args!(
                "bridge {} has {ports} ports of the {most} that it holds",
                link.name
            ));
        }
    }
    cni::step("ask the IPAM plugin");
    del::forward(&request.network, Verb::Status)
}

/// Nine of ten.
const NEARLY_FULL: usize = host::MOST_PORTS * 9 / 10;
