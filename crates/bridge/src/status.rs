//! STATUS: could an ADD succeed?

use cni::{Error, StatusRequest, Verb};
use netlink::Connection;

use crate::config::Config;
use crate::{del, host};

/// Says whether an ADD could succeed, and asks the delegate the same.
///
/// # Errors
/// The configuration makes no sense; code 50: the bridge's name belongs to something else.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    let config = Config::of_network(&request.network)?;
    let connection = Connection::open()?;
    if let Some(link) = connection.find_link(config.bridge.as_str())? {
        let unavailable = |error: Error| Error::Unavailable {
            reason: error.to_string(),
        };
        host::expect_bridge(&link).map_err(unavailable)?;
    }
    del::forward(&request.network, Verb::Status)
}
