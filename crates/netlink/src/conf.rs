//! Reads and sets `net.ipv4.conf` and `net.ipv6.conf` of a link by netlink instead of `/proc/sys`.
//!
//! To open a file below `/proc/sys/net/ipv4`, the kernel first looks up this directory. The kernel
//! compares the directories of all namespaces for that, one by one (`proc_sys_compare` in
//! `fs/proc/proc_sysctl.c`). With a thousand namespaces this takes a millisecond.

use netlink_packet_core::{DefaultNla, NLA_F_NESTED};
use netlink_packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InetDevConf, LinkAttribute,
};

use crate::attributes::{Attributes, entry, value};

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
    /// Reads the settings from the value of a link's attribute `IFLA_AF_SPEC`. Returns `None` if the
    /// link has no IPv6: the kernel lacks IPv6, or the link's MTU is under 1280 bytes.
    pub(crate) fn read(families: &[u8]) -> Option<Self> {
        let conf = value(value(families, AF_INET6)?, INET6_CONF)?;
        Some(Self {
            is_disabled: entry(conf, DISABLE_IPV6)? != 0,
            link_local: LinkLocalOrigin::read(entry(conf, ADDR_GEN_MODE)?),
            accept_ra: entry(conf, ACCEPT_RA)?,
            autoconf: entry(conf, AUTOCONF)?,
        })
    }
}

/// Returns whether `route_localnet` is on, according to the value of a link's attribute
/// `IFLA_AF_SPEC`; `false` if the attribute lacks this setting.
pub(crate) fn routes_localnet(families: &[u8]) -> bool {
    let conf = value(families, AF_INET).and_then(|it| value(it, CONF));
    // The array starts with the setting that has the number 1.
    let value = conf.and_then(|it| entry(it, usize::from(ROUTE_LOCALNET) - 1));
    value.is_some_and(|it| it != 0)
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
    let value = Attributes::new().word(ROUTE_LOCALNET, value);
    let inet = Attributes::new().nest(CONF, &value);
    let families = Attributes::new().nest(AF_INET, &inet);
    LinkAttribute::Other(DefaultNla::new(AF_SPEC | NLA_F_NESTED, families.to_vec()))
}

/// Numbers of nested attributes, in this order: `IFLA_AF_SPEC`, `AF_INET`, `IFLA_INET_CONF` and
/// `IPV4_DEVCONF_ROUTE_LOCALNET`.
const AF_SPEC: u16 = 26;
const AF_INET: u16 = 2;
const CONF: u16 = 1;
const ROUTE_LOCALNET: u16 = 26;

/// Numbers of nested attributes: `AF_INET6` and `IFLA_INET6_CONF`.
const AF_INET6: u16 = 10;
const INET6_CONF: u16 = 2;

/// Indexes of settings in `IFLA_INET6_CONF`, there with the prefix `DEVCONF_`
/// (`include/uapi/linux/ipv6.h`).
const ACCEPT_RA: usize = 3;
const AUTOCONF: usize = 5;
const DISABLE_IPV6: usize = 26;
const ADDR_GEN_MODE: usize = 47;
