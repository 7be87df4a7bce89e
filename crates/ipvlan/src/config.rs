//! The configuration as the desired state of the link.

use attach::dns;
use attach::single::{Addresses, Mac, Parent, SandboxLink, Single, mtu};
use cni::{CniArgs, Error, Network};
use netlink::{LinkKind, NewKind};

use crate::RawConfig;

/// The plugin `ipvlan`.
#[derive(Debug)]
pub enum Ipvlan {}

impl SandboxLink for Ipvlan {
    fn parse(network: &Network, _: &CniArgs) -> Result<Single, Error> {
        let raw: RawConfig = network.config()?;
        Ok(Single {
            kind: NewKind::Ipvlan(raw.mode.into()).into(),
            parent: Some(Parent::parse(&raw.master, raw.link_in_container)?),
            mac: Mac::OfParent,
            mtu: mtu(raw.mtu)?,
            addresses: Addresses::OrPrevious,
            dns: dns(raw.dns),
        })
    }

    fn makes(kind: &LinkKind) -> bool {
        matches!(kind, LinkKind::Ipvlan(_))
    }
}
