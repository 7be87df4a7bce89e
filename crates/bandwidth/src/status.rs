//! STATUS: reports missing kernel features.

use cni::{StatusRequest, note};
use netlink::Connection;
use netns::Netns;

use crate::backstop;
use crate::config::Config;

/// Reports missing kernel features on standard error and succeeds nevertheless, because sandboxes
/// without limits work without these features.
///
/// # Errors
/// The configuration is invalid.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    Config::parse(&request.network)?;
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
