//! STATUS: reports missing kernel features, doubtful rates, and a kubelet's checkpoint (its list of
//! allocated devices) that is missing or unreadable.

use cni::{Error, StatusRequest, note};
use netlink::Connection;
use netns::Netns;

use crate::backstop;
use crate::config::Config;
use crate::doubts::doubts;

/// Logs doubtful rates and missing kernel features on standard error. STATUS succeeds without these
/// features, because sandboxes without limits do not need them.
///
/// # Errors
/// - The configuration is invalid.
/// - Code 50: the kubelet's checkpoint exists and cannot be read, so the ADD of every pod would fail.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network)?;
    doubts(&request.network.quiet_config()?)
        .iter()
        .for_each(note);
    if let Some(resources) = &config.pod_resources {
        let readable = resources.expect_readable();
        readable.map_err(|error| Error::Unavailable(format!("{error:#}")))?;
    }
    let missing = Netns::run_in_new(|| {
        let modules = tc::missing(&Connection::open()?)?.into_iter();
        let missing = modules.map(tc::lacks).chain(backstop::missing()?);
        Ok::<_, anyhow::Error>(missing.collect::<Vec<_>>())
    });
    match missing.unwrap_or_else(|error| Err(error.into())) {
        Ok(missing) => missing.iter().for_each(note),
        Err(error) => note(format_args!(
            "cannot try whether rates can be limited: {error:#}"
        )),
    }
    Ok(())
}
