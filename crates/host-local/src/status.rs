//! STATUS: could an ADD succeed?

use anyhow::Context as _;
use cni::{Error, StatusRequest};
use nix::unistd::{AccessFlags, access};

use crate::config::Config;
use crate::store;

/// Says whether leases can be written; touches none.
///
/// # Errors
/// The configuration makes no sense; code 50: the data directory cannot be written.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network)?;
    config.dns()?;
    let directory = store::directory(&config.data_dir, &request.network.name);
    // What is missing will be made, below the nearest directory that is there.
    let nearest = directory
        .ancestors()
        .find(|path| path.exists())
        .context("find the root directory")?;
    let writable = access(nearest, AccessFlags::W_OK | AccessFlags::X_OK);
    let reason = match writable {
        Ok(()) if nearest.is_dir() => return Ok(()),
        Ok(()) => "it is no directory".to_owned(),
        Err(errno) => errno.desc().to_lowercase(),
    };
    Err(Error::Unavailable {
        reason: format!(
            "leases cannot be written to {}: {reason}; see ipam.dataDir",
            nearest.display()
        ),
    })?
}
