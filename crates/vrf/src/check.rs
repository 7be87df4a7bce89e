//! CHECK: compares the sandbox with the configuration.

use anyhow::ensure;
use attach::enter;
use cni::CheckRequest;

use crate::Config;
use crate::link::Vrf;

/// Checks that the VRF exists, with the configured table, and that the interface is its port.
///
/// # Errors
/// - The sandbox or its interface does not exist.
/// - The sandbox differs from the configuration.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network)?;
    request.chained()?;
    cni::step("compare");
    let (_, connection) = enter(&request.netns)?;
    let link = connection.link(request.attachment.interface.as_str())?;
    let vrf = Vrf::of(&connection, &config)?;
    let name = &config.name;
    ensure!(vrf.is_some(), "the VRF {name} does not exist");
    let is_port = link.master == vrf.map(|it| it.index);
    ensure!(is_port, "{} is not in the VRF {name}", link.name);
    Ok(())
}
