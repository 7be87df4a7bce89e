//! Creates, repairs and removes the WireGuard device.

use rtnetlink::packet_core::ErrorMessage;
use rtnetlink::{Error, LinkUnspec, LinkWireguard};

use crate::apply::Others;
use crate::device::{ALIAS, Device, FOREIGN, Link};
use crate::generic;
use crate::kernel::{Kernel, reason};
use crate::mesh::{Changes, DEVICE, Mesh};
use crate::problem::Problem;

impl Kernel {
    /// Makes the device and makes the other nodes known to it. Returns it with the number of changes;
    /// the problem if another link has its name, or if the kernel refuses it.
    pub(crate) async fn wireguard(
        &mut self,
        mesh: &Mesh,
        others: Others,
    ) -> Result<Result<(Device, usize), Problem>, Error> {
        let refused = |reason| Problem::WireGuard { reason };
        let peers = mesh.remotes.values().map(|it| it.endpoint.ip());
        let Some(underlay) = self.underlay(mesh.local, peers).await? else {
            let reason = format!("no link has this node's InternalIP {}", mesh.local);
            return Ok(Err(refused(reason)));
        };
        let mtu = underlay.mtu.saturating_sub(mesh.overhead());
        let mut device = Device {
            index: 0,
            mtu,
            uplinks: underlay.links,
            problems: Vec::new(),
        };
        match self.connected((mesh, &mut device), others).await {
            Ok(Some(changes)) => Ok(Ok((device, changes))),
            Ok(None) => Ok(Err(refused(FOREIGN.to_owned()))),
            Err(Error::NetlinkError(error)) => Ok(Err(refused(words(&error, mesh.port)))),
            Err(error) => Err(error),
        }
    }

    /// Makes or repairs the device, and completes its description. Returns the number of changes; `None`
    /// if another link has its name.
    async fn connected(
        &mut self,
        (mesh, device): (&Mesh, &mut Device),
        others: Others,
    ) -> Result<Option<usize>, Error> {
        let mtu = device.mtu;
        let links = self.handle.link();
        let mut link = self.link(DEVICE).await?;
        if link.is_none() {
            let message = LinkWireguard::new(DEVICE).mtu(mtu).alias(ALIAS);
            links.add(message.build()).execute().await?;
            link = self.link(DEVICE).await?;
        }
        let link = link.ok_or(Error::RequestFailed)?;
        if !link.is_wireguard() {
            return Ok(None);
        }
        let found = generic::read().await?;
        let mut changes = Changes::between(&found, mesh, &self.endpoints);
        if others == Others::Keep {
            changes.remove.clear();
        }
        generic::change(mesh, &changes).await?;
        let endpoints = mesh.remotes.iter().map(|(key, it)| {
            let sent = found.remotes.get(key).map_or(0, |it| it.sent);
            (*key, (it.endpoint, sent))
        });
        self.endpoints = endpoints.collect();
        if link.mtu != mtu || !link.is_up {
            let change = LinkUnspec::new_with_index(link.index).mtu(mtu).up().build();
            links.set(change).execute().await?;
        }
        for address in &mesh.addresses {
            let problem = self.set_address(link.index, *address).await?;
            device.problems.extend(problem);
        }
        device.index = link.index;
        Ok(Some(changes.count()))
    }

    /// Removes the WireGuard device. Returns whether there was one.
    pub(crate) async fn remove_wireguard(&self) -> Result<bool, Error> {
        match self.link(DEVICE).await?.filter(Link::is_wireguard) {
            Some(link) => self.remove_link(link.index).await,
            None => Ok(false),
        }
    }
}

/// Returns why the kernel refuses the device.
fn words(error: &ErrorMessage, port: u16) -> String {
    match error.raw_code() {
        NOT_SUPPORTED => "this node's kernel has no WireGuard: run modprobe wireguard".to_owned(),
        IN_USE => format!(
            "another program uses UDP port {port}, such as another WireGuard device: end it, or set \
             wireguard.port on all nodes"
        ),
        _ => reason(error),
    }
}

/// `-EOPNOTSUPP`.
const NOT_SUPPORTED: i32 = -95;

/// `-EADDRINUSE`.
const IN_USE: i32 = -98;
