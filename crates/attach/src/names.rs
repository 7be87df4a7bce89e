//! Names and MACs of a veth pair, derived from the attachment, and the recognition of the host's
//! end.

use std::net::IpAddr;

use cni::result::IpConfig;
use cni::{Attachment, NetworkName, hex, is_hex};
use netlink::{Link, LinkKind, MacAddress};
use sha2::{Digest as _, Sha256};

/// Returns the name of the host's end of the veth pair: `veth` and 11 digits of the attachment's
/// hash. DEL computes the same name, so ADD need not record it.
pub fn host_link_name(attachment: &Attachment) -> String {
    let digits = hex(&attachment.digest(), HOST_NAME_DIGITS);
    format!("{HOST_LINK_PREFIX}{digits}")
}

/// Returns the MAC of the host's end of the veth pair. It is locally administered and differs from
/// every MAC that the plugins derive for a container. Two of its bytes identify the network, so GC
/// recognises the link even if ADD was killed before it set the link's alias.
pub(crate) fn host_mac(attachment: &Attachment) -> MacAddress {
    marked_mac(HOST_MAC, attachment)
}

/// Returns whether `link` is the host's end of the attachment's veth pair, also if an operator has
/// changed its name or its alias. If the alias is a tag, it decides. Otherwise, the MAC decides, or
/// the name of a link without an alias.
///
/// A link with another name must have its other end in another namespace. Otherwise a container could
/// forge alias, name and MAC on a link that the runtime lends to its sandbox: the peer of such a veth
/// usually stays on the host.
pub fn is_host_end(link: &Link, attachment: &Attachment) -> bool {
    HostEnd::of(attachment).is(link)
}

/// What identifies the host's end of an attachment's veth pair, for the comparison with many links.
#[derive(Debug, Clone)]
pub struct HostEnd {
    owner: String,
    name: String,
    mac: MacAddress,
}

impl HostEnd {
    /// Returns what identifies the host's end of `attachment`.
    pub fn of(attachment: &Attachment) -> Self {
        Self {
            owner: attachment.owner(),
            name: host_link_name(attachment),
            mac: host_mac(attachment),
        }
    }

    /// Returns whether `link` is it, as [`is_host_end`] does.
    pub fn is(&self, link: &Link) -> bool {
        let is_named = link.name == self.name;
        let is_placed = is_named || link.peer_namespace.is_some();
        let has_mac = link.mac == Some(self.mac);
        link.kind == LinkKind::Veth
            && is_placed
            && match &link.alias {
                Some(alias) if Attachment::is_owner(alias) => *alias == self.owner,
                Some(_) => has_mac,
                None => has_mac || is_named,
            }
    }
}

/// Returns whether `link` is the host's end of the veth pair of the attachment with the tag `owner`,
/// as [`is_host_end`] does. A tag may have hashes in place of long names. Then only the alias shows
/// that a link is the host's end.
pub fn is_host_end_of(link: &Link, owner: &str) -> bool {
    Attachment::of_owner(owner).is_some_and(|it| is_host_end(link, &it))
}

/// Returns whether `name` has the form that [`host_link_name`] returns.
pub(crate) fn is_host_link_name(name: &str) -> bool {
    let digits = name.strip_prefix(HOST_LINK_PREFIX);
    digits.is_some_and(|it| is_hex(it, HOST_NAME_DIGITS))
}

/// Returns a MAC of three parts: the byte `first`, two bytes that identify the network, and three
/// bytes of the attachment's hash. By the first two parts, GC recognises a link without an alias.
pub fn marked_mac(first: u8, attachment: &Attachment) -> MacAddress {
    let [a, b] = attachment.network.mark();
    mac(&[first, a, b], &attachment.digest())
}

/// Returns whether `mac` starts as a [`marked_mac`] of `network` does: with the byte `first` and
/// the two bytes that identify the network.
pub(crate) fn is_marked_mac(mac: MacAddress, first: u8, network: &NetworkName) -> bool {
    let [a, b] = network.mark();
    mac.0.starts_with(&[first, a, b])
}

/// Returns the MAC of the container's end of the veth pair. It is derived from the first IPv4
/// address in `ips`, or else from the first IPv6 address, or else from the attachment. If the
/// address is leased again, its new container has the same MAC, so the neighbours' cache entries
/// stay valid.
pub fn derived_mac(ips: &[IpConfig], attachment: &Attachment) -> MacAddress {
    let v4 = ips.iter().find(|ip| ip.address.is_ipv4());
    match v4.or(ips.first()) {
        Some(ip) => mac_of(ip.address.ip()),
        None => mac(&[0x06], &attachment.digest()),
    }
}

/// Returns the MAC for an address. IPv4: `0a:58` and the four bytes of the address, as in kubenet.
/// IPv6: `0e` and five bytes of the address's SHA-256.
fn mac_of(address: IpAddr) -> MacAddress {
    match address {
        IpAddr::V4(address) => mac(&[0x0a, 0x58], &address.octets()),
        IpAddr::V6(address) => mac(&[0x0e], &Sha256::digest(address.octets())),
    }
}

/// Returns a MAC for a bridge that another program created and that has no MAC yet. The MAC is
/// derived from the kernel's boot ID and the bridge's name, so concurrent ADDs compute the same
/// MAC.
pub fn bridge_mac(boot_id: &str, bridge: &str) -> MacAddress {
    mac(&[0x02], &Sha256::digest(format!("{boot_id}/{bridge}")))
}

/// Returns the MAC that consists of `prefix` and the first bytes of `rest`.
pub(crate) fn mac(prefix: &[u8], rest: &[u8]) -> MacAddress {
    let mut bytes = [0; 6];
    for (byte, source) in bytes.iter_mut().zip(prefix.iter().chain(rest)) {
        *byte = *source;
    }
    MacAddress(bytes)
}

/// Returns whether ADD must announce `mac` to the neighbours: whether `mac` differs from the MAC
/// that `mac_of` derives from an address in `ips`. Neighbours may have cached the derived MAC
/// during an earlier lease of the address.
pub(crate) fn must_announce(ips: &[IpConfig], mac: MacAddress) -> bool {
    ips.iter().any(|ip| mac_of(ip.address.ip()) != mac)
}

/// Prefix of the name of each veth pair's host end.
pub const HOST_LINK_PREFIX: &str = "veth";

/// Number of digits after [`HOST_LINK_PREFIX`] in the name of a link. With the prefix, the name has
/// 15 bytes, the maximum for a link.
const HOST_NAME_DIGITS: usize = 11;

/// First byte of the MAC of each veth pair's host end: the highest one that a unicast MAC can have.
/// A bridge without a fixed MAC takes the lowest MAC of its ports. So such a bridge takes the MAC
/// of a host end only if all its ports have MACs that start with this byte.
pub(crate) const HOST_MAC: u8 = 0xfe;

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(address: &str) -> IpConfig {
        IpConfig::of(address.parse().unwrap())
    }

    fn attachment() -> Attachment {
        Attachment {
            network: "pods".parse().unwrap(),
            container: "c1".parse().unwrap(),
            interface: "eth0".parse().unwrap(),
        }
    }

    #[test]
    fn mac_follows_from_the_first_ipv4_address() {
        let ips = [ip("fd00::9/64"), ip("10.1.0.9/24")];
        let mac = derived_mac(&ips, &attachment());
        assert_eq!(mac.to_string(), "0a:58:0a:01:00:09");
        assert!(must_announce(&ips, mac), "IPv6 does not follow from it");
        assert!(!must_announce(&ips[1..], mac));
        let v6 = derived_mac(&ips[..1], &attachment());
        assert!(v6.to_string().starts_with("0e:") && !must_announce(&ips[..1], v6));
    }

    #[test]
    fn host_end_is_recognised_after_a_change_of_name_or_alias() {
        let (attachment, other) = (attachment(), "cni:pods/c2/eth0");
        let is_own = |name: &str, alias: Option<&str>, mac: Option<MacAddress>| {
            let link = Link {
                name: name.to_owned(),
                kind: LinkKind::Veth,
                mac,
                peer_namespace: Some(0),
                alias: alias.map(str::to_owned),
                ..Link::default()
            };
            let on_host = Link {
                peer_namespace: None,
                ..link.clone()
            };
            [&link, &on_host].map(|it| is_host_end(it, &attachment))
        };
        let (name, owner) = (host_link_name(&attachment), attachment.owner());
        let mac = Some(host_mac(&attachment));
        for alias in [Some(owner.as_str()), Some("db primary"), None] {
            assert_eq!(is_own(&name, alias, mac), [true, true], "{alias:?}");
            assert_eq!(is_own("podb", alias, mac), [true, false], "{alias:?}");
        }
        assert_eq!(is_own(&name, Some(&owner), None), [true, true]);
        assert_eq!(is_own("podb", Some(&owner), None), [true, false]);
        assert_eq!(is_own(&name, None, None), [true, true]);
        for (name, alias, mac) in [
            (name.as_str(), Some(other), mac),
            (&name, Some("db primary"), None),
            ("podb", None, None),
        ] {
            assert_eq!(is_own(name, alias, mac), [false, false], "{alias:?}");
        }
    }

    #[test]
    fn names_and_macs_of_the_pair_are_fit_for_the_kernel() {
        let name = host_link_name(&attachment());
        assert_eq!((name.len(), &name[..4]), (15, "veth"));
        let early_mac = derived_mac(&[], &attachment());
        assert!(host_mac(&attachment()).is_unicast() && early_mac.is_unicast());
        assert_ne!(host_mac(&attachment()), early_mac);
    }
}
