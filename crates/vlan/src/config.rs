//! The configuration as the desired state of the link.

use attach::dns;
use attach::single::{Addresses, Mac, Parent, SandboxLink, Single, mtu};
use cni::{CniArgs, Error, Network};
use netlink::{LinkKind, NewKind};

use crate::RawConfig;

/// The plugin `vlan`.
#[derive(Debug)]
pub enum Vlan {}

impl SandboxLink for Vlan {
    fn parse(network: &Network, _: &CniArgs) -> Result<Single, Error> {
        let raw: RawConfig = network.config()?;
        if raw.master.is_empty() {
            let reason = "required: name the link whose VLAN the sandbox gets";
            return Err(Error::invalid("master", reason));
        }
        if raw.vlan_id > LAST {
            let reason = format!("{} is not within 0 to {LAST}", raw.vlan_id);
            return Err(Error::invalid("vlanId", reason));
        }
        Ok(Single {
            kind: NewKind::Vlan(raw.vlan_id).into(),
            parent: Some(Parent::parse(&raw.master, raw.link_in_container)?),
            mac: Mac::OfParent,
            mtu: mtu(raw.mtu)?,
            addresses: Addresses::Required,
            dns: dns(raw.dns),
        })
    }

    fn makes(kind: &LinkKind) -> bool {
        matches!(kind, LinkKind::Vlan(_))
    }
}

/// The highest VLAN; 4095 is reserved.
const LAST: u16 = 4094;
