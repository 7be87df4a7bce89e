//! CHECK: compares the device in the sandbox with the record and with `prevResult`.

use attach::{compare_link, forward};
use cni::{CheckRequest, Verb};

use crate::config::{Config, Selector};
use crate::record::Record;

/// Calls CHECK of the IPAM plugin, then compares the device, its MAC, its addresses and its routes.
/// Compares nothing of a device without a link, which a program such as DPDK uses.
///
/// # Errors
/// - Code 7: the configuration is invalid, or `prevResult` is missing.
/// - The attachment differs. One error names all differences.
/// - The error of the IPAM plugin, with its code.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network)?;
    let expected = request.chained()?;
    cni::step("ask the IPAM plugin");
    forward(&request.network, Verb::Check)?;
    if config.device == Selector::UserSpace {
        return Ok(());
    }
    cni::step("compare");
    compare_link(request, expected, |link, reported, _, found| {
        found.compare_mac(link, reported);
        let name = &link.name;
        // The reference writes no record.
        if let Some(record) = Record::find(&request.attachment.owner())? {
            found.unless(record.device.is_like(link), || {
                let former = &record.device.name;
                format!(
                    "{name} in the sandbox is not {former} (other kind, parent, peer or permanent \
                     MAC)"
                )
            });
        }
        found.unless(link.is_up, || format!("{name} in the sandbox is down"));
        Ok(())
    })
}
