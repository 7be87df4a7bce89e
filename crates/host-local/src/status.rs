//! STATUS: could an ADD succeed?

use std::path::Path;

use anyhow::Context as _;
use cni::{Error, StatusRequest};
use nix::unistd::{AccessFlags, access};

use crate::config::Config;
use crate::store;

/// Says whether leases can be written; touches none.
///
/// # Errors
/// The configuration makes no sense; code 50: the node's pod CIDRs are not known yet,
/// `resolvConf` cannot be read, or the data directory cannot be written.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    let config = match Config::parse(&request.network) {
        Err(Error::TryAgain { reason }) => Err(Error::Unavailable { reason }),
        config => config,
    }?;
    config.dns().map_err(|error| Error::Unavailable {
        reason: format!("{error:#}"),
    })?;
    let directories = store::directories(&config.place.data_dir, &request.network.name);
    directories
        .iter()
        .try_for_each(|path| expect_writable(path))
}

/// What is missing will be made, below the nearest directory that is there.
fn expect_writable(directory: &Path) -> anyhow::Result<()> {
    let nearest = directory
        .ancestors()
        .find(|path| path.exists())
        .context("find the root directory")?;
    let reason = match access(nearest, AccessFlags::W_OK | AccessFlags::X_OK) {
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn missing_directory_is_as_good_as_the_nearest_one() {
        let data_dir = tempfile::tempdir().unwrap();
        expect_writable(&data_dir.path().join("a/b")).unwrap();
        assert_eq!(fs::read_dir(data_dir.path()).unwrap().count(), 0);
        fs::write(data_dir.path().join("a"), "").unwrap();
        let error = expect_writable(&data_dir.path().join("a/b")).unwrap_err();
        assert_eq!(error.downcast::<Error>().unwrap().code(), 50);
    }
}
