//! Finds or creates the host's link that has the gateway addresses of a network with a VLAN.
//!
//! This plugin creates a VLAN link on top of the bridge. The Go plugin `bridge` instead creates a
//! veth pair and adds one end to the bridge as a port. With that pair, packets from a container to
//! the host pass netfilter twice.

use anyhow::{Context as _, bail};
use attach::{HOST_EXPOSED, harden};
use cni::{Error, note, note_failure};
use netlink::{
    Connection, Link, LinkChange, LinkKind, NewKind, NewLink, PortVlans, Request, Tagging,
    VlanCarrier, created,
};
use netns::Sysctl;

use crate::vlan::Access;

/// The host's end of a VLAN on a bridge: the link that has the gateway addresses. The last two
/// variants state what is missing if there is no such link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostEnd<'a> {
    /// The bridge itself: it receives and sends the VLAN's frames without a tag.
    Bridge,
    /// The existing link `<bridge>.<vlan>`.
    Link(Box<Link>),
    /// Only the link `<bridge>.<vlan>` is missing: the bridge itself already receives the VLAN's
    /// frames with their tag (`bridge vlan show`).
    LinkMissing(&'a Access),
    /// The link `<bridge>.<vlan>` is missing, and the bridge itself is not in the VLAN. So the
    /// bridge drops the VLAN's frames that are addressed to the host.
    VlanMissing(&'a Access),
}

impl<'a> HostEnd<'a> {
    /// Finds the host's end of `access`, the gateway's VLAN on `bridge`; changes nothing. If
    /// `access` is `None`, the host's end is the bridge itself.
    ///
    /// # Errors
    /// Code 7: the link `<bridge>.<vlan>` exists, but is not the bridge's link for this VLAN; or
    /// the bridge tags the VLAN's frames in one direction only.
    pub fn find(
        host: &Connection,
        bridge: &Link,
        access: Option<&'a Access>,
    ) -> anyhow::Result<Self> {
        let Some(access) = access else {
            return Ok(Self::Bridge);
        };
        if let Some(link) = host.find_link(access.gateway_link.as_str())? {
            expect_end(host, bridge, &link, access)?;
            return Ok(Self::Link(Box::new(link)));
        }
        let carried = host.port_vlans(bridge.index)?;
        Ok(Self::without_link(&carried, access)?)
    }

    /// Returns the host's end of a VLAN whose link `<bridge>.<vlan>` does not exist. This end
    /// depends on `carried`: the VLANs of the bridge itself, with their tagging.
    ///
    /// # Errors
    /// Code 7: the bridge tags the VLAN's frames in one direction only.
    fn without_link(carried: &[PortVlans], access: &'a Access) -> Result<Self, Error> {
        let vlan = access.vlan;
        let entry = carried
            .iter()
            .find(|it| (it.first..=it.last).contains(&vlan));
        match entry.map(|it| it.tagging) {
            None => Ok(Self::VlanMissing(access)),
            Some(Tagging::Tagged) => Ok(Self::LinkMissing(access)),
            Some(Tagging::Access) => Ok(Self::Bridge),
            Some(Tagging::Untagged) => Err(Error::invalid(
                "vlan",
                format!(
                    "VLAN {vlan} is untagged on the bridge itself, but not its PVID (bridge vlan show), so the bridge can be \
                     no gateway there; choose another VLAN, or give the bridge VLAN {vlan} tagged or as its PVID"
                ),
            )),
        }
    }

    /// Creates the VLAN link if it is missing, brings it up and returns it. Returns `None` if the
    /// bridge itself is the host's end.
    ///
    /// For [`Self::VlanMissing`], this function first adds the bridge itself to the VLAN. If it
    /// then cannot create the link, it removes the bridge from the VLAN again, unless another
    /// process has created the link. Appends to `unset` if the link accepts router advertisements,
    /// because `/proc/sys` is read-only.
    ///
    /// # Errors
    /// - Code 7: the VLAN has a link with another name, or the name belongs to another link.
    /// - Code 100: the kernel refuses a request.
    pub fn ensure(
        self,
        host: &Connection,
        bridge: &Link,
        unset: &mut Vec<String>,
    ) -> anyhow::Result<Option<Link>> {
        let link = match self {
            Self::Bridge => return Ok(None),
            Self::Link(link) => *link,
            Self::LinkMissing(access) => make_link(host, bridge, access)?,
            Self::VlanMissing(access) => receive_and_make_link(host, bridge, access)?,
        };
        if link.kind == LinkKind::Veth {
            warn_of_pair(&link.name);
        }
        // Makes the link ignore router advertisements, as the bridge does (CVE-2020-10749). Sysctls
        // need the main name of the link, not an alternative one.
        let ignored = Sysctl::ipv6(&link.name, "accept_ra").ensure("0");
        unset.extend(harden(ignored, HOST_EXPOSED)?);
        if !link.is_up {
            host.execute(vec![Request::change_link(&link.name, &LinkChange::Up)])?;
        }
        Ok(Some(link))
    }
}

/// Adds the bridge itself to the VLAN, then creates the VLAN link and returns it. Because of this
/// order, a concurrent ADD that finds the link can use it at once.
fn receive_and_make_link(
    host: &Connection,
    bridge: &Link,
    access: &Access,
) -> anyhow::Result<Link> {
    let entry = PortVlans::one(access.vlan, Tagging::Tagged);
    let itself = VlanCarrier::Bridge(bridge.index);
    host.execute([Request::add_vlans(itself, entry)])?;
    make_link(host, bridge, access).inspect_err(|_| {
        // A concurrent ADD may have created the link in the meantime. That link needs the VLAN, so
        // the VLAN stays.
        let is_unused = matches!(host.find_link(access.gateway_link.as_str()), Ok(None));
        if is_unused {
            note_failure(host.execute([Request::delete_vlans(itself, entry)]));
        }
    })
}

fn make_link(host: &Connection, bridge: &Link, access: &Access) -> anyhow::Result<Link> {
    let name = access.gateway_link.as_str();
    let mac = bridge.mac.context("the bridge has no MAC")?;
    // If a concurrent ADD has created the link, this ADD uses that link.
    let link = NewLink {
        mac: Some(mac),
        parent: Some(bridge.index),
        ..NewLink::of(name, NewKind::Vlan(access.vlan))
    };
    created(host.add_link(&link))?;
    let Some(link) = host.find_link(name)? else {
        bail!(taken_by_another(host, bridge, access.vlan)?);
    };
    expect_end(host, bridge, &link, access)?;
    Ok(link)
}

/// Returns the error for a VLAN that has a link with another name. The kernel allows only one link
/// per VLAN of a bridge.
fn taken_by_another(host: &Connection, bridge: &Link, vlan: u16) -> anyhow::Result<Error> {
    let links = host.links()?;
    let is_it = |it: &&Link| it.kind == LinkKind::Vlan(vlan) && it.peer == Some(bridge.index);
    let name = links.iter().find(is_it).map(|it| it.name.as_str());
    let reason = format!(
        "VLAN {vlan} of {} has the link {} already; choose another VLAN, or remove or rename that link",
        bridge.name,
        name.unwrap_or("of another name")
    );
    Ok(Error::invalid("vlan", reason))
}

/// Checks that `link` is the VLAN link of the bridge for this VLAN. Also accepts a veth whose peer
/// is a port of the bridge, because the Go plugin `bridge` creates such a link instead.
///
/// # Errors
/// Code 7: `link` is neither.
fn expect_end(
    host: &Connection,
    bridge: &Link,
    link: &Link,
    access: &Access,
) -> anyhow::Result<()> {
    let is_end = match (&link.kind, link.peer) {
        (LinkKind::Vlan(vlan), lower) => *vlan == access.vlan && lower == Some(bridge.index),
        (LinkKind::Veth, Some(peer)) if link.peer_namespace.is_none() => {
            host.link_by_index(peer)?.master == Some(bridge.index)
        }
        _ => false,
    };
    if is_end {
        return Ok(());
    }
    let reason = format!(
        "{} exists and is of kind {}, not the host's end of VLAN {} on {}; remove it or choose another bridge",
        link.name, link.kind, access.vlan, bridge.name
    );
    bail!(Error::invalid("vlan", reason))
}

fn warn_of_pair(name: &str) {
    note!(
        "{name} is a veth pair, as the Go plugin makes it: where bridged frames pass netfilter \
         (net.bridge.bridge-nf-call-iptables is 1), they pass twice, and masquerading and Services fail; when no \
         container uses it any more, remove it with: ip link delete {name}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(vlan: u16) -> Access {
        Access {
            vlan,
            gateway_link: format!("cni0.{vlan}").parse().unwrap(),
        }
    }

    /// For the tests: returns the host's end of the VLAN `access` on an imagined bridge. The bridge
    /// itself is in VLAN 1 without a tag, and in VLANs 100 to 199 with `tagging`.
    fn end(access: &Access, tagging: Tagging) -> Result<HostEnd<'_>, Error> {
        let entry = |first, last, tagging| PortVlans {
            first,
            last,
            tagging,
        };
        let carried = [entry(1, 1, Tagging::Access), entry(100, 199, tagging)];
        HostEnd::without_link(&carried, access)
    }

    #[test]
    fn bridge_is_the_end_of_the_vlan_that_it_takes_and_sends_untagged() {
        let [own, within, beyond] = [1, 150, 200].map(access);
        for tagging in [Tagging::Tagged, Tagging::Access, Tagging::Untagged] {
            assert_eq!(end(&own, tagging).unwrap(), HostEnd::Bridge);
            let absent = HostEnd::VlanMissing(&beyond);
            assert_eq!(end(&beyond, tagging).unwrap(), absent);
        }
        let tagged = HostEnd::LinkMissing(&within);
        assert_eq!(end(&within, Tagging::Tagged).unwrap(), tagged);
        assert_eq!(end(&within, Tagging::Access).unwrap(), HostEnd::Bridge);
        let refusal = end(&within, Tagging::Untagged).unwrap_err();
        assert_eq!(refusal.code(), 7);
        assert!(refusal.to_string().contains("VLAN 150"), "{refusal}");
    }
}
