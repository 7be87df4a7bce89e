//! Reads and changes WireGuard devices over generic netlink.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use futures::StreamExt as _;
use ipnetwork::IpNetwork;
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_packet_wireguard::{
    WireguardAddressFamily, WireguardAllowedIp, WireguardAllowedIpAttr, WireguardAttribute,
    WireguardCmd, WireguardDeviceFlags, WireguardMessage, WireguardPeer, WireguardPeerAttribute,
    WireguardPeerFlags, WireguardTimeSpec,
};
use rtnetlink::Error;
use rtnetlink::packet_core::{
    Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
    ParseableParametrized,
};
use rtnetlink::proto::new_connection;
use rtnetlink::sys::{SocketAddr, protocols};
use tokio::task::JoinSet;

use crate::key::PublicKey;
use crate::mesh::{Change, Changes, DEVICE, Found, FoundRemote, Mesh, Remote};

/// Reads the device.
///
/// # Errors
/// The socket failed, or there is no such device.
pub(crate) async fn read() -> Result<Found, Error> {
    let mut found = Found::default();
    let messages = ask(WireguardCmd::GetDevice, Vec::new(), NLM_F_DUMP).await?;
    for attribute in messages.into_iter().flat_map(|it| it.attributes) {
        match attribute {
            WireguardAttribute::PublicKey(key) => found.key = Some(PublicKey(key)),
            WireguardAttribute::ListenPort(port) => found.port = port,
            WireguardAttribute::Peers(peers) => {
                for peer in &peers {
                    add(&mut found.remotes, peer);
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Changes the device. A network that moves to another node is never without one.
///
/// # Errors
/// The socket failed, or the kernel refuses a value.
pub(crate) async fn change(desired: &Mesh, changes: &Changes) -> Result<(), Error> {
    let removals = changes.remove.iter().map(|it| removal(*it));
    let set = changes.set.iter().filter_map(|(key, change)| {
        let remote = desired.remotes.get(key)?;
        Some(description(*key, remote, *change))
    });
    let peers: Vec<_> = set.chain(removals).collect();
    if changes.is_reset {
        let reset = vec![
            WireguardAttribute::PrivateKey(desired.key.bytes()),
            WireguardAttribute::ListenPort(desired.port),
            WireguardAttribute::Flags(WireguardDeviceFlags::ReplacePeers),
        ];
        ask(WireguardCmd::SetDevice, reset, NLM_F_ACK).await?;
    }
    for peers in peers.chunks(AT_ONCE) {
        let peers = vec![WireguardAttribute::Peers(peers.to_vec())];
        ask(WireguardCmd::SetDevice, peers, NLM_F_ACK).await?;
    }
    Ok(())
}

/// Adds a part of a node that the kernel has. The kernel may split a node's networks over messages.
fn add(remotes: &mut BTreeMap<PublicKey, FoundRemote>, peer: &WireguardPeer) {
    let (mut key, mut part) = (None, FoundRemote::default());
    for attribute in &peer.0 {
        match attribute {
            WireguardPeerAttribute::PublicKey(it) => key = Some(PublicKey(*it)),
            WireguardPeerAttribute::Endpoint(it) => part.endpoint = Some(*it),
            WireguardPeerAttribute::TxBytes(it) => part.sent = *it,
            WireguardPeerAttribute::LastHandshake(it) => part.age = since(*it),
            WireguardPeerAttribute::AllowedIps(all) => {
                part.networks.extend(all.iter().filter_map(network));
            }
            _ => {}
        }
    }
    if let Some(key) = key {
        let remote = remotes.entry(key).or_default();
        remote.endpoint = remote.endpoint.or(part.endpoint);
        remote.networks.extend(part.networks);
        remote.sent = remote.sent.max(part.sent);
        remote.age = remote.age.max(part.age);
    }
}

/// Returns how long ago a time was; the largest value if there was none.
fn since(time: WireguardTimeSpec) -> Duration {
    let Ok(seconds @ 1..) = u64::try_from(time.seconds) else {
        return Duration::MAX;
    };
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    time.elapsed().unwrap_or_default()
}

fn network(allowed: &WireguardAllowedIp) -> Option<IpNetwork> {
    let (mut address, mut prefix) = (None, None);
    for attribute in &allowed.0 {
        match attribute {
            WireguardAllowedIpAttr::IpAddr(it) => address = Some(*it),
            WireguardAllowedIpAttr::Cidr(it) => prefix = Some(*it),
            _ => {}
        }
    }
    IpNetwork::new(address?, prefix?).ok()
}

fn removal(key: PublicKey) -> WireguardPeer {
    WireguardPeer(vec![
        WireguardPeerAttribute::PublicKey(key.0),
        WireguardPeerAttribute::Flags(WireguardPeerFlags::RemoveMe),
    ])
}

fn description(key: PublicKey, remote: &Remote, change: Change) -> WireguardPeer {
    let mut attributes = vec![WireguardPeerAttribute::PublicKey(key.0)];
    if change.endpoint {
        attributes.extend([
            WireguardPeerAttribute::Endpoint(remote.endpoint),
            WireguardPeerAttribute::PersistentKeepalive(KEEPALIVE),
        ]);
    }
    if change.networks {
        let networks = remote.networks.iter().map(allowed).collect();
        attributes.extend([
            WireguardPeerAttribute::Flags(WireguardPeerFlags::ReplaceAllowedIps),
            WireguardPeerAttribute::AllowedIps(networks),
        ]);
    }
    WireguardPeer(attributes)
}

fn allowed(network: &IpNetwork) -> WireguardAllowedIp {
    let family = if network.is_ipv4() {
        WireguardAddressFamily::Ipv4
    } else {
        WireguardAddressFamily::Ipv6
    };
    WireguardAllowedIp(vec![
        WireguardAllowedIpAttr::Family(family),
        WireguardAllowedIpAttr::IpAddr(network.network()),
        WireguardAllowedIpAttr::Cidr(network.prefix()),
    ])
}

/// Sends a message about the device, and returns the answers.
async fn ask(
    cmd: WireguardCmd,
    more: Vec<WireguardAttribute>,
    flags: u16,
) -> Result<Vec<WireguardMessage>, Error> {
    let mut attributes = vec![WireguardAttribute::IfName(DEVICE.to_owned())];
    attributes.extend(more);
    exchange(family().await?, WireguardMessage { cmd, attributes }, flags).await
}

/// Returns the number that the kernel gave WireGuard.
async fn family() -> Result<u16, Error> {
    let name = GenlCtrlAttrs::FamilyName(WireguardMessage::family_name().to_owned());
    let request = GenlCtrl {
        cmd: GenlCtrlCmd::GetFamily,
        nlas: vec![name],
    };
    let answers = exchange(0, request, NLM_F_ACK).await?;
    let mut attributes = answers.into_iter().flat_map(|it| it.nlas);
    let family = attributes.find_map(|it| match it {
        GenlCtrlAttrs::FamilyId(id) => Some(id),
        _ => None,
    });
    family.ok_or(Error::RequestFailed)
}

/// Sends a message through a socket of its own.
async fn exchange<F>(family: u16, payload: F, flags: u16) -> Result<Vec<F>, Error>
where
    F: GenlFamily + Emitable + ParseableParametrized<[u8], GenlHeader>,
    F: Clone + Debug + Eq + Send + Unpin + 'static,
{
    let (connection, handle, _unsolicited) =
        new_connection(protocols::NETLINK_GENERIC).map_err(|_| Error::RequestFailed)?;
    let mut reader = JoinSet::new();
    reader.spawn(connection);
    let mut message = GenlMessage::from_payload(payload);
    message.set_resolved_family_id(family);
    let mut message = NetlinkMessage::from(message);
    message.header.flags = NLM_F_REQUEST | flags;
    let answers = handle.request(message, SocketAddr::new(0, 0));
    let mut answers = answers.map_err(|_| Error::RequestFailed)?;
    let mut payloads = Vec::new();
    while let Some(answer) = answers.next().await {
        match answer.payload {
            NetlinkPayload::InnerMessage(it) => payloads.push(it.payload),
            NetlinkPayload::Error(error) if error.code.is_some() => {
                return Err(Error::NetlinkError(error));
            }
            _ => {}
        }
    }
    Ok(payloads)
}

/// Nodes in one message. The kernel reads at most 64 KiB of nodes in one.
const AT_ONCE: usize = 100;

/// Seconds without packets after which the kernel sends an empty one: the most that it takes. With
/// any value, it begins the session with a node that is new to it at once, so the one of two nodes
/// that knows the other one's key last does. Otherwise, packets could wait for five seconds.
const KEEPALIVE: u16 = u16::MAX;
