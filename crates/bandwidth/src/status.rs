//! STATUS: what could not be limited.

use cni::{StatusRequest, note};
use netlink::Connection;
use netns::Netns;

use crate::config::Config;

/// Says on standard error what the kernel lacks: sandboxes without limits still work.
///
/// # Errors
/// The configuration makes no sense.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    Config::parse(&request.network)?;
    match missing() {
        Ok(missing) => {
            for module in missing {
                note(format_args!(
                    "the kernel lacks {module}, without which no rate can be limited; mend it by: modprobe \
                     {module}"
                ));
            }
        }
        Err(error) => note(format_args!(
            "cannot try whether rates can be limited: {error:#}"
        )),
    }
    Ok(())
}

fn missing() -> anyhow::Result<Vec<tc::Module>> {
    Netns::run_in_new(|| Ok(tc::missing(&Connection::open()?)?))?
}
