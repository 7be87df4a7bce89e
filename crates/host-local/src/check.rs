//! CHECK compares the leases with the result of ADD; STATUS reports whether an ADD can succeed.

use std::path::Path;

use anyhow::{Context as _, ensure};
use cni::{CheckRequest, Error, NetworkName, StatusRequest};
use nix::unistd::{AccessFlags, access};

use crate::files::Files;
use crate::free::{Free, near};
use crate::rebuild::remaining_leases;
use crate::{Config, Store};

/// Checks that the attachment holds every address of `prevResult` that is within a range of this
/// network, and at least one address.
///
/// # Errors
/// The attachment does not hold one of these addresses, or holds no address.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network)?;
    cni::step("compare");
    let store = Store::inspect(&config.storage, &request.network.name)?;
    let attachment = &request.attachment;
    let held = store.map(|store| store.leases_of(attachment));
    let leases = held.transpose()?.unwrap_or_default();
    ensure!(!leases.is_empty(), "{attachment} holds no address");
    let is_ours = |it| config.sets.iter().any(|set| set.range_of(it).is_some());
    let is_held = |it| leases.iter().any(|lease| lease.address == it);
    let ips = request.prev_result.iter().flat_map(|result| &result.ips);
    let lost = ips.map(|ip| ip.address.ip());
    let lost = lost.filter(|it| is_ours(*it) && !is_held(*it));
    let lost: Vec<_> = lost.map(|address| address.to_string()).collect();
    let lost = lost.join(", ");
    ensure!(lost.is_empty(), "{attachment} does not hold {lost}");
    Ok(())
}

/// Checks that leases can be written and that every range set has a free address. Changes nothing
/// and does not take the lock.
///
/// # Errors
/// - The configuration is invalid.
/// - Code 50: the node's pod CIDRs are not known yet, `resolvConf` cannot be read, or the data
///   directory cannot be written.
/// - Code 50: a range set has no free address, and `statusWhenFull` is "fail". With "warn", the
///   function only writes a message to standard error.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    let config = match Config::parse_for_status(&request.network) {
        Err(Error::TryAgain(reason)) => Err(Error::Unavailable(reason)),
        config => config,
    }?;
    config.dns().map_err(Error::unavailable)?;
    let network = &request.network.name;
    expect_writable(&config.storage.lease_directory(network))?;
    expect_writable(&config.storage.index_directory(network))?;
    expect_free_addresses(&config, network)
}

fn expect_free_addresses(config: &Config, network: &NetworkName) -> anyhow::Result<()> {
    let files = Files::open(&config.storage, network);
    let last = |number| files.leases.last_reserved(number);
    let mut sets: Vec<_> = config.sets.iter().enumerate().collect();
    sets.retain(|(number, set)| near(&files, set, last(*number)).is_none());
    if sets.is_empty() {
        return Ok(());
    }
    // If the index is not trusted, the next ADD rebuilds it. The rebuild releases stale leases,
    // such as leases of an earlier boot, so their addresses count as free.
    let held = if files.index.is_trusted() {
        files.leases.addresses()?
    } else {
        remaining_leases(&files, config.storage.earlier_boot)?
    };
    let free = Free::all_but(held, &files.cooldown);
    for (_, set) in sets {
        if free.of(set, None).next().is_none() {
            let reason = free.exhaustion(set);
            config.when_full.report(format!("{reason:#}"))?;
        }
    }
    Ok(())
}

/// Checks that `directory` is writable. If it is missing, checks the nearest existing parent, in
/// which ADD would create the directory.
fn expect_writable(directory: &Path) -> anyhow::Result<()> {
    let nearest = directory
        .ancestors()
        .find(|path| path.symlink_metadata().is_ok())
        .context("find the root directory")?;
    let reason = match access(nearest, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) if nearest.is_dir() => return Ok(()),
        Ok(()) => "it is not a directory".to_owned(),
        Err(errno) => errno.desc().to_lowercase(),
    };
    Err(Error::Unavailable(format!(
        "leases cannot be written to {}: {reason}; see ipam.dataDir",
        nearest.display()
    )))?
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
