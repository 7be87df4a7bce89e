//! Reads and sets `net.ipv4.conf` and `net.ipv6.conf` of a link by netlink instead of `/proc/sys`.
//!
//! To open a file below `/proc/sys/net/ipv4`, the kernel first looks up this directory. The kernel
//! compares the directories of all namespaces for that, one by one (`proc_sys_compare` in
//! `fs/proc/proc_sysctl.c`). With a thousand namespaces this takes a millisecond.

use netlink_packet_core::{DefaultNla, Emitable as _, NLA_F_NESTED};
use netlink_packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InetDevConf, LinkAttribute,
};

/// IPv6 settings of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6 {
    /// `disable_ipv6`: the link has no IPv6 address.
    pub is_disabled: bool,
    /// Source of the link's link-local address.
    pub link_local: LinkLocalOrigin,
    /// `accept_ra`: the link accepts router advertisements, with 1 only if it does not forward.
    pub accept_ra: i32,
    /// `autoconf`: with 1, the link derives addresses from router advertisements.
    pub autoconf: i32,
}

/// How the kernel generates a link's link-local address when the link comes up (`addr_gen_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLocalOrigin {
    /// The kernel derives the link-local address from the MAC, as [`crate::MacAddress::link_local`]
    /// does.
    Mac,
    /// The kernel generates no link-local address.
    None,
    /// The kernel derives the address from a secret (RFC 7217), not from the MAC.
    Secret,
}

impl Ipv6 {
    /// Reads the settings from a link's attribute `IFLA_AF_SPEC`. Returns `None` if the link has no
    /// IPv6: the kernel lacks IPv6, or the link's MTU is under 1280 bytes.
    pub(crate) fn read(families: &[AfSpecUnspec]) -> Option<Self> {
        let mut attributes = families.iter().flat_map(|family| match family {
            AfSpecUnspec::Inet6(attributes) => attributes.as_slice(),
            _ => &[],
        });
        attributes.find_map(|attribute| match attribute {
            AfSpecInet6::DevConf(conf) => Some(Self {
                is_disabled: conf.disable_ipv6 != 0,
                link_local: LinkLocalOrigin::read(conf.addr_gen_mode),
                accept_ra: conf.accept_ra,
                autoconf: conf.autoconf,
            }),
            _ => None,
        })
    }
}

/// Returns whether `route_localnet` is on, according to a link's attribute `IFLA_AF_SPEC`; `false`
/// if the attribute lacks this setting.
pub(crate) fn routes_localnet(families: &[AfSpecUnspec]) -> bool {
    let mut attributes = families.iter().flat_map(|family| match family {
        AfSpecUnspec::Inet(attributes) => attributes.as_slice(),
        _ => &[],
    });
    attributes.any(|it| matches!(it, AfSpecInet::DevConf(conf) if conf.route_localnet != 0))
}

impl LinkLocalOrigin {
    fn read(mode: i32) -> Self {
        match u8::try_from(mode).map(In6AddrGenMode::from) {
            Ok(In6AddrGenMode::Eui64) => Self::Mac,
            Ok(In6AddrGenMode::None) => Self::None,
            _ => Self::Secret,
        }
    }

    pub(crate) fn attribute(self) -> LinkAttribute {
        let mode = match self {
            Self::Mac => In6AddrGenMode::Eui64,
            Self::None => In6AddrGenMode::None,
            Self::Secret => In6AddrGenMode::StablePrivacy,
        };
        let mode = AfSpecInet6::AddrGenMode(mode);
        LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![mode])])
    }
}

/// Returns the attribute that sets `arp_notify` of a link to 1.
pub(crate) fn arp_notify() -> LinkAttribute {
    let mut conf = InetDevConf::default();
    conf.arp_notify = 1;
    let conf = AfSpecInet::DevConfRequest(conf);
    LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet(vec![conf])])
}

/// Returns the attribute that sets `route_localnet` of a link to `value`. This function builds the
/// bytes itself, because netlink-packet-route omits values of 0.
pub(crate) fn route_localnet(value: u32) -> LinkAttribute {
    let value = DefaultNla::new(ROUTE_LOCALNET, value.to_ne_bytes().to_vec());
    let inet = nested(AF_INET, &nested(CONF, &value));
    LinkAttribute::Other(nested(AF_SPEC, &inet))
}

fn nested(kind: u16, attribute: &DefaultNla) -> DefaultNla {
    let mut bytes = vec![0; attribute.buffer_len()];
    attribute.emit(&mut bytes);
    DefaultNla::new(kind | NLA_F_NESTED, bytes)
}

/// Numbers of nested attributes, in this order: `IFLA_AF_SPEC`, `AF_INET`, `IFLA_INET_CONF` and
/// `IPV4_DEVCONF_ROUTE_LOCALNET`.
const AF_SPEC: u16 = 26;
const AF_INET: u16 = 2;
const CONF: u16 = 1;
const ROUTE_LOCALNET: u16 = 26;
