//! Creates, repairs and removes VXLAN devices.

use std::collections::BTreeSet;
use std::net::IpAddr;

use futures::TryStreamExt as _;
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope,
};
use rtnetlink::packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InetDevConf, InfoData, InfoKind,
    InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::{Error, LinkUnspec, LinkVxlan};

use crate::kernel::{Kernel, reason};
use crate::peers::Peers;
use crate::problem::Problem;
use crate::tunnel::Tunnel;

/// A VXLAN device that exists.
pub(crate) struct Device {
    /// Index of the device.
    pub index: u32,
    /// Its MTU: that of the uplinks, without the tunnel's headers.
    pub mtu: u32,
    /// Indexes of the links on which the MTU depends.
    pub uplinks: BTreeSet<u32>,
    /// Addresses that the kernel refuses to give it. The other family works without them.
    pub problems: Vec<Problem>,
}

/// A link as far as this crate needs it.
pub(crate) struct Link {
    pub index: u32,
    pub mtu: u32,
    pub is_up: bool,
    kind: Option<InfoKind>,
    /// Whether it leads to no other host: `lo` or a dummy.
    pub is_loopback: bool,
    /// Whether the kernel generates a link-local address when it comes up.
    has_link_local: bool,
    /// Whether packets with a source to which another link leads pass (`rp_filter`, RFC 3704).
    is_loose: bool,
    /// `None` if the link is no VXLAN device.
    vxlan: Option<Found>,
}

/// The properties of a VXLAN device that a change needs another device for.
#[derive(PartialEq, Eq)]
struct Found {
    vni: u32,
    port: u16,
    local: Option<IpAddr>,
    learns: bool,
    mac: Vec<u8>,
}

impl Kernel {
    /// Makes the device, and returns it; the problem if another link has its name, or if
    /// the kernel refuses it.
    pub(crate) async fn device(
        &self,
        tunnel: &Tunnel,
        peers: &Peers,
    ) -> Result<Result<Device, Problem>, Error> {
        let refused = |reason| Problem::Device {
            device: tunnel.name.to_owned(),
            reason,
        };
        let peers = peers.networks.values().map(|it| it.address);
        let Some(underlay) = self.underlay(tunnel.local, peers).await? else {
            let reason = format!("no link has this node's InternalIP {}", tunnel.local);
            return Ok(Err(refused(reason)));
        };
        let mtu = underlay.mtu.saturating_sub(tunnel.overhead());
        match self.repaired(tunnel, mtu).await {
            Ok(Some((index, problem))) => Ok(Ok(Device {
                index,
                mtu,
                uplinks: underlay.links,
                problems: problem.into_iter().collect(),
            })),
            Ok(None) => Ok(Err(refused(FOREIGN.to_owned()))),
            Err(Error::NetlinkError(error)) => Ok(Err(refused(reason(&error)))),
            Err(error) => Err(error),
        }
    }

    /// Removes the VXLAN device with this name. Returns whether there was one.
    pub(crate) async fn remove_device(&self, name: &str) -> Result<bool, Error> {
        match self.link(name).await?.filter(|it| it.vxlan.is_some()) {
            Some(link) => self.remove_link(link.index).await,
            None => Ok(false),
        }
    }

    /// Removes a link. Returns true, also if another program has just removed it.
    pub(crate) async fn remove_link(&self, index: u32) -> Result<bool, Error> {
        match self.handle.link().del(index).execute().await {
            Ok(()) | Err(Error::NetlinkError(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Makes or repairs the device. Returns its index, and why it lacks its address; `None` if another
    /// link has its name.
    async fn repaired(
        &self,
        tunnel: &Tunnel,
        mtu: u32,
    ) -> Result<Option<(u32, Option<Problem>)>, Error> {
        let Some(link) = self.made(tunnel, mtu).await? else {
            return Ok(None);
        };
        let links = self.handle.link();
        let change = || LinkUnspec::new_with_index(link.index);
        if link.has_link_local {
            // No other node may become a router by an advertisement.
            let change = change().append_extra_attribute(without_link_local());
            links.set(change.build()).execute().await?;
        }
        if !link.is_up || !link.is_loose {
            let change = change().up().append_extra_attribute(loose());
            links.set(change.build()).execute().await?;
        }
        let problem = self.set_address(link.index, tunnel.address).await?;
        Ok(Some((link.index, problem)))
    }

    /// Makes the device with this MTU. Returns it; `None` if another link has its name.
    async fn made(&self, tunnel: &Tunnel, mtu: u32) -> Result<Option<Link>, Error> {
        let links = self.handle.link();
        match self.link(tunnel.name).await? {
            Some(Link { vxlan: None, .. }) => return Ok(None),
            Some(link) if link.vxlan == Some(Found::of(tunnel)) => {
                if link.mtu == mtu {
                    return Ok(Some(link));
                }
                let change = LinkUnspec::new_with_index(link.index).mtu(mtu);
                links.set(change.build()).execute().await?;
            }
            found => {
                if let Some(other) = found {
                    self.remove_link(other.index).await?;
                }
                links.add(message(tunnel, mtu)).execute().await?;
            }
        }
        // From an MTU of 1280 on, the device has IPv6 again, with the defaults.
        let made = self.link(tunnel.name).await?;
        made.ok_or(Error::RequestFailed).map(Some)
    }

    /// Gives the device its address, and takes away link-local ones and those of an earlier pod CIDR.
    /// Returns why the kernel refuses it, such as without IPv6.
    pub(crate) async fn set_address(
        &self,
        link: u32,
        address: IpAddr,
    ) -> Result<Option<Problem>, Error> {
        match self.replace_address(link, address).await {
            Ok(()) => Ok(None),
            Err(Error::NetlinkError(error)) => Ok(Some(Problem::Address {
                address,
                reason: reason(&error),
            })),
            Err(error) => Err(error),
        }
    }

    async fn replace_address(&self, link: u32, address: IpAddr) -> Result<(), Error> {
        let mut addresses = self
            .handle
            .address()
            .get()
            .set_link_index_filter(link)
            .execute();
        let mut is_there = false;
        while let Some(found) = addresses.try_next().await? {
            let ip = ip_of(&found);
            is_there |= ip == Some(address);
            let is_other = ip.is_some_and(|it| it.is_ipv4() == address.is_ipv4() && it != address);
            let is_earlier = is_other && found.header.scope == AddressScope::Universe;
            // The kernel has generated it with IPv6.
            let is_local = matches!(ip, Some(IpAddr::V6(it)) if it.is_unicast_link_local());
            if is_earlier || is_local {
                self.handle.address().del(found).execute().await?;
            }
        }
        if !is_there {
            let length = if address.is_ipv4() { 32 } else { 128 };
            let mut add = self.handle.address().add(link, address, length);
            // Detection of duplicates takes a second, and finds none without broadcasts.
            add.message_mut().header.flags |= AddressHeaderFlags::Nodad;
            add.execute().await?;
        }
        Ok(())
    }

    pub(crate) async fn link_at(&self, index: u32) -> Result<Option<Link>, Error> {
        let links = self.handle.link().get().match_index(index);
        match links.execute().try_next().await {
            Ok(link) => Ok(link.map(|it| read(&it))),
            // Another program has just deleted it.
            Err(Error::NetlinkError(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn link(&self, name: &str) -> Result<Option<Link>, Error> {
        let mut links = self
            .handle
            .link()
            .get()
            .match_name(name.to_owned())
            .execute();
        match links.try_next().await {
            Ok(link) => Ok(link.map(|it| read(&it))),
            // There is no link of this name.
            Err(Error::NetlinkError(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Link {
    pub(crate) fn is_wireguard(&self) -> bool {
        self.kind == Some(InfoKind::Wireguard)
    }
}

impl Found {
    fn of(tunnel: &Tunnel) -> Self {
        Self {
            vni: tunnel.vxlan.vni,
            port: tunnel.vxlan.port,
            local: Some(tunnel.local),
            learns: false,
            mac: tunnel.mac.to_vec(),
        }
    }

    fn read(infos: &[LinkInfo], mac: &[u8]) -> Option<Self> {
        let mut infos = infos.iter();
        let data = infos.find_map(|it| match it {
            LinkInfo::Data(InfoData::Vxlan(data)) => Some(data),
            _ => None,
        })?;
        let mut found = Self {
            vni: 0,
            port: 0,
            local: None,
            learns: true,
            mac: mac.to_vec(),
        };
        for value in data {
            match value {
                InfoVxlan::Id(vni) => found.vni = *vni,
                InfoVxlan::Port(port) => found.port = *port,
                InfoVxlan::Local(local) => found.local = Some((*local).into()),
                InfoVxlan::Local6(local) => found.local = Some((*local).into()),
                InfoVxlan::Learning(learns) => found.learns = *learns,
                _ => {}
            }
        }
        Some(found)
    }
}

/// Returns the message that creates the device. The MAC and MTU are in the same message, because
/// udev changes a MAC that the kernel chose.
fn message(tunnel: &Tunnel, mtu: u32) -> LinkMessage {
    let device = LinkVxlan::new(tunnel.name, tunnel.vxlan.vni)
        .port(tunnel.vxlan.port)
        .learning(false)
        .address(tunnel.mac.to_vec())
        .mtu(mtu)
        .alias(ALIAS);
    match tunnel.local {
        IpAddr::V4(local) => device.local(local).udp_csum(false).build(),
        IpAddr::V6(local) => device.local6(local).build(),
    }
}

fn read(message: &LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        mtu: 0,
        is_up: message.header.flags.contains(LinkFlags::Up),
        kind: None,
        is_loopback: message.header.flags.contains(LinkFlags::Loopback),
        has_link_local: false,
        is_loose: false,
        vxlan: None,
    };
    let mut attributes = message.attributes.iter();
    let mac = attributes.find_map(|it| match it {
        LinkAttribute::Address(mac) => Some(mac.as_slice()),
        _ => None,
    });
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::LinkInfo(infos) => {
                link.kind = infos.iter().find_map(|it| match it {
                    LinkInfo::Kind(kind) => Some(kind.clone()),
                    _ => None,
                });
                link.is_loopback |= link.kind == Some(InfoKind::Dummy);
                link.vxlan = Found::read(infos, mac.unwrap_or_default());
            }
            LinkAttribute::AfSpecUnspec(families) => {
                link.is_loose = families.iter().any(is_loose);
                link.has_link_local = families.iter().any(has_link_local);
            }
            _ => {}
        }
    }
    link
}

fn ip_of(message: &AddressMessage) -> Option<IpAddr> {
    message.attributes.iter().find_map(|it| match it {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    })
}

fn is_loose(family: &AfSpecUnspec) -> bool {
    let AfSpecUnspec::Inet(values) = family else {
        return false;
    };
    let mut values = values.iter();
    values.any(|it| matches!(it, AfSpecInet::DevConf(it) if it.rp_filter == LOOSE))
}

/// Returns whether the link has IPv6 and generates a link-local address.
fn has_link_local(family: &AfSpecUnspec) -> bool {
    let AfSpecUnspec::Inet6(values) = family else {
        return false;
    };
    let mut values = values.iter();
    values.any(|it| matches!(it, AfSpecInet6::AddrGenMode(it) if *it != In6AddrGenMode::None))
}

/// Returns the attribute that lets packets out of the tunnel pass whose answers take a direct route. The
/// guard of the tunnel compares their sources.
fn loose() -> LinkAttribute {
    let mut values = InetDevConf::default();
    values.rp_filter = LOOSE;
    let values = AfSpecUnspec::Inet(vec![AfSpecInet::DevConfRequest(values)]);
    LinkAttribute::AfSpecUnspec(vec![values])
}

/// Returns the attribute that keeps the kernel from generating a link-local address.
fn without_link_local() -> LinkAttribute {
    let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
    LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![mode])])
}

/// The value of `rp_filter` with which any route to the source suffices.
const LOOSE: i32 = 2;

/// Shows administrators whose device it is.
pub(crate) const ALIAS: &str = "cni-agent: pods of other nodes";

pub(crate) const FOREIGN: &str =
    "another program has made a link of this name: delete or rename it";
