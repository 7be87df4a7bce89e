//! CHECK: compares the device in the sandbox with the record and with `prevResult`.

use attach::{Addressing, Differences, Gateway, Sandbox, forward, other_sandbox};
use cni::{CheckRequest, Error, Verb};
use netns::Netns;

use crate::config::{Config, Selector};
use crate::record::{self, Record};

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
    let interface = &request.attachment.interface;
    let namespace = Netns::open(&request.netns).map_err(Error::sandbox)?;
    let sandbox = Sandbox::open(&namespace, interface)?;
    let mut found = Differences::default();
    let reported = expected.in_sandbox(interface);
    found.extend(other_sandbox(&request.netns, reported.map(|it| it.1)));
    match sandbox.find_link()? {
        None => found.add(format!("{interface} in the sandbox is gone")),
        Some(link) => {
            let owner = request.attachment.owner();
            // The reference writes no record.
            let text = record::files().find(&owner).ok();
            let record = text.map(|it| Record::parse(&it)).transpose()?.flatten();
            found.unless(record.is_none_or(|it| it.device.is_like(&link)), || {
                format!("{interface} in the sandbox is another link than the device")
            });
            found.unless(link.is_up, || format!("{interface} in the sandbox is down"));
            found.compare_mac(&link, reported.map(|it| it.1));
            let place = reported.map(|it| it.0);
            let addressing = Addressing::reported(Gateway::None, expected, place)?;
            found.extend(sandbox.differences(&link, &addressing)?);
        }
    }
    found.report(&request.attachment)
}
