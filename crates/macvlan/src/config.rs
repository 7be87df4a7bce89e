//! The configuration as the desired state of the link.

use attach::single::{Addresses, Mac, Parent, SandboxLink, Single, mtu};
use attach::{configured_mac, dns};
use cni::{CniArgs, Error, Network};
use netlink::{LinkKind, NewKind};

use crate::RawConfig;
use crate::raw::Mode;

/// The plugin `macvlan`.
#[derive(Debug)]
pub enum Macvlan {}

impl SandboxLink for Macvlan {
    fn parse(network: &Network, args: &CniArgs) -> Result<Single, Error> {
        let raw: RawConfig = network.config()?;
        let asked = configured_mac(network, args, &raw.mac)?;
        let mac = match (asked, raw.mode) {
            (None, Mode::Passthru) => Mac::OfParent,
            (Some(mac), Mode::Passthru) => {
                let reason = format!("{mac}: in mode passthru, the link has the MAC of its master");
                return Err(Error::invalid("mac", reason));
            }
            (asked, _) => asked.map_or(Mac::Derived, Mac::Asked),
        };
        let queue = Some(raw.bc_queue_len).filter(|it| *it != 0);
        Ok(Single {
            kind: NewKind::Macvlan(raw.mode.into(), queue).into(),
            parent: Some(Parent::parse(&raw.master, raw.link_in_container)?),
            mac,
            mtu: mtu(raw.mtu)?,
            addresses: Addresses::Optional,
            dns: dns(raw.dns),
        })
    }

    fn makes(kind: &LinkKind) -> bool {
        matches!(kind, LinkKind::Macvlan(_))
    }
}
