//! The configuration as the desired state of the link.

use attach::single::{Addresses, Kind, Mac, NewTap, SandboxLink, Single, mtu};
use attach::{configured_mac, dns};
use cni::keys::parsed;
use cni::{CniArgs, Error, Network};
use netlink::LinkKind;

use crate::RawConfig;

/// The plugin `tap`.
#[derive(Debug)]
pub enum Tap {}

impl SandboxLink for Tap {
    fn parse(network: &Network, args: &CniArgs) -> Result<Single, Error> {
        let raw: RawConfig = network.config()?;
        let bridge = Some(raw.bridge.as_str()).filter(|it| !it.is_empty());
        let new = NewTap {
            tap: netlink::Tap {
                multi_queue: raw.multi_queue,
                owner: id("owner", raw.owner)?,
                group: id("group", raw.group)?,
            },
            context: Some(raw.selinux_context).filter(|it| !it.is_empty()),
            bridge: bridge.map(|it| parsed(it, "bridge")).transpose()?,
        };
        Ok(Single {
            kind: Kind::Tap(new),
            parent: None,
            mac: configured_mac(network, args, &raw.mac)?.map_or(Mac::Derived, Mac::Asked),
            mtu: mtu(raw.mtu)?,
            addresses: Addresses::Optional,
            dns: dns(raw.dns),
        })
    }

    fn makes(kind: &LinkKind) -> bool {
        matches!(kind, LinkKind::Tap(_))
    }
}

/// Returns the number of a user or a group. The kernel uses the highest number for none.
fn id(key: &str, number: Option<u32>) -> Result<Option<u32>, Error> {
    if number == Some(u32::MAX) {
        return Err(Error::invalid(
            key,
            format!("{} is no number of a user or group", u32::MAX),
        ));
    }
    Ok(number)
}
