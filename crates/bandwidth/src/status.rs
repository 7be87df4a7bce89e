//! STATUS: reports missing kernel features.

use cni::{StatusRequest, note};
use netlink::Connection;
use netns::Netns;

use crate::backstop;
use crate::config::Config;

/// Reports missing kernel features on standard error: sandboxes without limits still work.
///
/// # Errors
/// The configuration is invalid.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    Config::parse(&request.network)?;
    let missing = Netns::run_in_new(|| {
        let mut missing = modules()?;
        missing.extend(backstop::missing()?);
        Ok::<_, anyhow::Error>(missing)
    });
    match missing.unwrap_or_else(|error| Err(error.into())) {
        Ok(missing) => missing.iter().for_each(note),
        Err(error) => note(format_args!(
            "cannot try whether rates can be limited: {error:#}"
        )),
    }
    Ok(())
}

fn modules() -> anyhow::Result<Vec<String>> {
    let missing = tc::missing(&Connection::open()?)?.into_iter();
    let missing = missing.map(|module| {
        format!(
            "the kernel lacks {module}, so rates cannot be limited; load it with: modprobe {module}"
        )
    });
    Ok(missing.collect())
}
