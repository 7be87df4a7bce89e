//! The part of STATUS that checks the bridge.

use attach::MAX_PORTS;
use cni::{Error, note};
use netlink::Connection;

use crate::{Config, bridge};

/// Checks that the configured bridge has a free port. Writes a message to standard error if few are
/// left, or if none is left and `statusWhenFull` is "warn". Accepts a bridge that does not exist,
/// because ADD creates it.
///
/// # Errors
/// Code 50: another kind of link has the bridge's name, or the bridge has no free port and
/// `statusWhenFull` is "fail".
pub(crate) fn probe(config: &Config) -> anyhow::Result<()> {
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
    Ok(())
}

/// Number of used ports from which on STATUS writes a message: 90 % of the maximum.
const NEARLY_FULL: usize = MAX_PORTS * 9 / 10;
