//! The configuration as the desired state of the link.

use attach::dns;
use attach::single::{Addresses, Mac, SandboxLink, Single};
use cni::{CniArgs, Error, Network};
use netlink::{LinkKind, NewKind};

use crate::RawConfig;

/// The plugin `dummy`.
#[derive(Debug)]
pub enum Dummy {}

impl SandboxLink for Dummy {
    fn parse(network: &Network, _: &CniArgs) -> Result<Single, Error> {
        let raw: RawConfig = network.config()?;
        Ok(Single {
            kind: NewKind::Dummy.into(),
            parent: None,
            mac: Mac::Derived,
            mtu: None,
            addresses: Addresses::Required,
            dns: dns(raw.dns),
        })
    }

    fn makes(kind: &LinkKind) -> bool {
        *kind == LinkKind::Dummy
    }
}
