//! Entries of a VXLAN device: the MAC address of each node, and the address of each MAC.

use std::collections::BTreeMap;
use std::net::IpAddr;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::{Error, NeighbourAddRequest};

use crate::kernel::{AT_ONCE, Kernel, reason};
use crate::tunnel::Mac;

/// The desired entries of a device.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// The MAC address of each gateway.
    pub neighbours: BTreeMap<IpAddr, Mac>,
    /// The node's address of each MAC address.
    pub forwarding: BTreeMap<Mac, IpAddr>,
}

/// The entries that the kernel has and that are not desired.
#[derive(Debug, Default)]
pub(crate) struct Stale(Vec<NeighbourMessage>);

/// What [`Kernel::set_entries`] has found and done.
#[derive(Debug, Default)]
pub(crate) struct Set {
    /// The number of entries that were created or replaced.
    pub changes: usize,
    /// The other entries, which stay until no route uses them.
    pub stale: Stale,
    /// Why the kernel refuses an entry, such as without IPv6.
    pub refused: Option<String>,
}

impl Kernel {
    /// Adds and replaces entries of the device.
    pub(crate) async fn set_entries(&self, link: u32, mut desired: Entries) -> Result<Set, Error> {
        let mut set = Set {
            stale: self.stale_entries(link, &mut desired).await?,
            ..Set::default()
        };
        let neighbours = self.handle.neighbours();
        let forwarding = desired.forwarding.iter().map(|(mac, address)| {
            let add = neighbours.add_bridge(link, mac).destination(*address);
            add.flags(NeighbourFlags::Own).replace()
        });
        let resolved = desired.neighbours.iter().map(|(gateway, mac)| {
            neighbours
                .add(link, *gateway)
                .link_layer_address(mac)
                .replace()
        });
        let requests: Vec<_> = forwarding
            .chain(resolved)
            .map(NeighbourAddRequest::execute)
            .collect();
        let mut answers = stream::iter(requests).buffer_unordered(AT_ONCE);
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(()) => set.changes += 1,
                Err(Error::NetlinkError(error)) => set.refused = Some(reason(&error)),
                Err(error) => return Err(error),
            }
        }
        Ok(set)
    }

    /// Removes entries that the kernel has from the desired ones. Returns the others that it has.
    async fn stale_entries(&self, link: u32, desired: &mut Entries) -> Result<Stale, Error> {
        let mut stale = Stale::default();
        for family in [
            AddressFamily::Inet,
            AddressFamily::Inet6,
            AddressFamily::Bridge,
        ] {
            let request = self.handle.neighbours().get().set_address_family(family);
            let mut found = request.execute();
            while let Some(entry) = found.try_next().await? {
                if entry.header.ifindex != link || !is_permanent(&entry) {
                    continue;
                }
                if !desired.take(&entry) {
                    stale.0.push(entry);
                }
            }
        }
        Ok(stale)
    }

    /// Removes entries.
    pub(crate) async fn remove_entries(&self, stale: Stale) -> Result<usize, Error> {
        let mut removed = 0;
        for entry in stale.0 {
            match self.handle.neighbours().del(entry).execute().await {
                Ok(()) => removed += 1,
                // It has been replaced, or another program has just deleted it.
                Err(Error::NetlinkError(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(removed)
    }
}

impl Entries {
    /// Removes an entry that the kernel has from the desired ones. Returns whether it is the
    /// desired one, or will be replaced by it.
    fn take(&mut self, entry: &NeighbourMessage) -> bool {
        let (address, mac) = (address_of(entry), mac_of(entry));
        if entry.header.family == AddressFamily::Bridge {
            let Some(mac) = mac else {
                return false;
            };
            let desired = self.forwarding.get(&mac).copied();
            if desired.is_some() && desired == address {
                self.forwarding.remove(&mac);
            }
            return desired.is_some();
        }
        let Some(address) = address else {
            return false;
        };
        let desired = self.neighbours.get(&address).copied();
        if desired.is_some() && desired == mac {
            self.neighbours.remove(&address);
        }
        desired.is_some()
    }
}

fn is_permanent(entry: &NeighbourMessage) -> bool {
    entry.header.state == NeighbourState::Permanent
}

fn address_of(entry: &NeighbourMessage) -> Option<IpAddr> {
    entry.attributes.iter().find_map(|it| match it {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some((*address).into()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => {
            Some((*address).into())
        }
        // In a forwarding entry, whose own family is that of bridges.
        NeighbourAttribute::Destination(NeighbourAddress::Other(octets)) => {
            let v4 = <[u8; 4]>::try_from(octets.as_slice()).map(IpAddr::from);
            let v6 = || <[u8; 16]>::try_from(octets.as_slice()).map(IpAddr::from);
            v4.or_else(|_| v6()).ok()
        }
        _ => None,
    })
}

fn mac_of(entry: &NeighbourMessage) -> Option<Mac> {
    entry.attributes.iter().find_map(|it| match it {
        NeighbourAttribute::LinkLayerAddress(mac) => mac.as_slice().try_into().ok(),
        _ => None,
    })
}
