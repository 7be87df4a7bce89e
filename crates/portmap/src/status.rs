//! STATUS: checks whether an ADD could succeed.

use cni::StatusRequest;

use crate::config::Config;
use crate::firewall;

/// Checks whether the configuration is valid and, by a dry run, whether the kernel supports
/// portmap's rules.
///
/// # Errors
/// - The configuration is invalid.
/// - Code 50: the kernel does not support a part of `nf_tables`, or this process has no access to
///   it.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    Config::parse(&request.network)?;
    Ok(firewall::dry_run()?)
}
