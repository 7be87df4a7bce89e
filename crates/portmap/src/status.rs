//! STATUS: could an ADD succeed?

use cni::StatusRequest;

use crate::config::Config;
use crate::firewall;

/// Says whether ports can be forwarded.
///
/// # Errors
/// The configuration makes no sense; code 50: the kernel lacks a part of `nf_tables`, or this
/// process may not use it.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    Config::parse(&request.network)?;
    Ok(firewall::rehearse()?)
}
