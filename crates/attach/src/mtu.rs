//! The MTU of a veth pair: from the configuration, or from the host's uplinks, the links with a
//! default route.

use std::collections::BTreeSet;

use cni::{Error, note};
use netlink::{Connection, Link, LinkKind, Route, found};

/// Where the MTU comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MtuChoice {
    /// From the configuration, in bytes, 68 to 65,535.
    Asked(u32),
    /// The MTU of the host's uplinks, minus `overhead` bytes.
    Detect {
        /// Bytes that an encapsulation adds to each packet.
        overhead: u32,
    },
}

impl MtuChoice {
    /// Parses the keys `mtu` and `mtuOverhead`, both in bytes. 0 stands for a missing key.
    ///
    /// # Errors
    /// Code 7: `mtu` is out of range, or both keys are present.
    pub fn parse(mtu: u32, overhead: u32) -> Result<Self, Error> {
        match (mtu, overhead) {
            (0, overhead) => Ok(Self::Detect { overhead }),
            (mtu, _) if !RANGE.contains(&mtu) => Err(Error::invalid(
                "mtu",
                format!("{mtu} is not within 68 to 65535 bytes; 0 detects it"),
            )),
            (mtu, 0) => Ok(Self::Asked(mtu)),
            (mtu, overhead) => Err(Error::invalid(
                "mtuOverhead",
                format!(
                    "{overhead} is subtracted from a detected MTU, but mtu asks for {mtu}; remove one of them"
                ),
            )),
        }
    }

    /// Returns the MTU in bytes. Without an uplink, reports on standard error where the MTU comes
    /// from.
    ///
    /// # Errors
    /// - Code 7: the detected MTU minus `overhead` is below 68, the minimum of IPv4.
    /// - Code 100: the kernel refuses a request.
    pub fn resolve(self, host: &Connection) -> anyhow::Result<u32> {
        let (mtu, guess) = self.find(host)?;
        if let Some(why) = guess {
            note!("took MTU {mtu}: {why}");
        }
        Ok(mtu)
    }

    /// Returns the MTU in bytes. If neither the configuration nor an uplink sets it, also returns a
    /// text for the operator about its source.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub fn find(self, host: &Connection) -> anyhow::Result<(u32, Option<String>)> {
        let overhead = match self {
            Self::Asked(mtu) => return Ok((mtu, None)),
            Self::Detect { overhead } => overhead,
        };
        let (mtu, why, is_guess) = detect(host)?;
        let rest = less_overhead(mtu, overhead).ok_or_else(|| {
            let reason = format!("{overhead} leaves too little of {mtu} bytes, {why}");
            Error::invalid("mtuOverhead", reason)
        })?;
        let why = match overhead {
            0 => why,
            _ => format!("{mtu}, {why}, less mtuOverhead {overhead}"),
        };
        Ok((rest, Some(why).filter(|_| is_guess)))
    }
}

/// Returns the smallest MTU of the host's uplinks in bytes, with a text for the operator about its
/// source, and `false`. Without an uplink, returns the smallest MTU of the physical links that are
/// up, and `true`. Without such a link, returns [`FALLBACK`].
fn detect(host: &Connection) -> anyhow::Result<(u32, String, bool)> {
    let routes = host.default_routes_in_use()?;
    let uplinks: BTreeSet<_> = routes.iter().flat_map(Route::links).collect();
    let mut links = Vec::new();
    for index in uplinks {
        // A missing link is no error: it may have been deleted since the routes were listed.
        links.extend(found(host.link_by_index(index))?);
    }
    // A default route through `lo` leads nowhere, and no veth pair can have the MTU of `lo`, 65,536.
    links.retain(|link| link.kind != LinkKind::Loopback);
    if let Some((mtu, why)) = smallest(links.iter(), "carries a default route") {
        return Ok((mtu, why, false));
    }
    // Tries the links without a master first, because the list of all links is longer: it contains
    // a bridge port for each container. The second call is needed if each physical link has a
    // master (a bond, for example), and before Linux 5.15, where the first call returns no links.
    let detected = match of_physical_links(&host.links_without_master()?) {
        None => of_physical_links(&host.links()?),
        detected => detected,
    };
    let why = || "Ethernet's, since no link of the host is up".to_owned();
    let (mtu, why) = detected.unwrap_or_else(|| (FALLBACK, why()));
    Ok((mtu, why, true))
}

/// Returns the smallest MTU in bytes of the physical links in `links` that are up, with a text for
/// the operator that names the link with this MTU. Returns `None` if no physical link is up.
fn of_physical_links(links: &[Link]) -> Option<(u32, String)> {
    let is_physical = |link: &&Link| link.is_up && link.kind == LinkKind::Physical;
    let links = links.iter().filter(is_physical);
    smallest(links, "is up, while no link carries a default route")
}

/// Returns the smallest MTU of `links` in bytes, with a text for the operator. The text names the
/// link and the `reason` why it counts. Returns `None` if there are no links.
fn smallest<'a>(links: impl Iterator<Item = &'a Link>, reason: &str) -> Option<(u32, String)> {
    let link = links.min_by_key(|link| link.mtu)?;
    let why = format!("the MTU of {}, which {reason}", link.name);
    Some((link.mtu, why))
}

/// Returns `mtu` minus `overhead`, or `None` if the difference is less than 68, the minimum MTU of
/// IPv4.
fn less_overhead(mtu: u32, overhead: u32) -> Option<u32> {
    mtu.checked_sub(overhead)
        .filter(|rest| rest >= RANGE.start())
}

/// Ethernet's MTU in bytes, for a host without an uplink and without a physical link that is up.
const FALLBACK: u32 = 1500;

/// Valid MTUs in bytes: from the minimum of IPv4 (RFC 791) to the maximum that the kernel accepts
/// for a veth pair (`ETH_MAX_MTU`).
const RANGE: std::ops::RangeInclusive<u32> = 68..=65_535;

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, kind: LinkKind, mtu: u32) -> Link {
        Link {
            index: 1,
            name: name.to_owned(),
            kind,
            mtu,
            is_up: true,
            is_operational: true,
            ..Link::default()
        }
    }

    #[test]
    fn smallest_uplink_decides_whatever_its_kind() {
        let uplinks = [
            link("eth0", LinkKind::Physical, 9000),
            link("wg0", LinkKind::Other("wireguard".into()), 1420),
        ];
        let (mtu, why) = smallest(uplinks.iter(), "carries a default route").unwrap();
        assert_eq!(mtu, 1420);
        assert_eq!(why, "the MTU of wg0, which carries a default route");
        assert_eq!(smallest([].iter(), ""), None);
    }

    #[test]
    fn without_uplink_only_real_links_that_are_up_count() {
        let down = Link {
            is_up: false,
            ..link("eth1", LinkKind::Physical, 1000)
        };
        let links = [
            link("lo", LinkKind::Loopback, 65536),
            link("cni0", LinkKind::Bridge, 1280),
            link("vethx", LinkKind::Veth, 1300),
            link("docker0", LinkKind::Other("tun".into()), 1200),
            link("eth0", LinkKind::Physical, 1450),
            down,
        ];
        assert_eq!(of_physical_links(&links).unwrap().0, 1450);
        assert_eq!(of_physical_links(&links[..4]), None);
    }

    #[test]
    fn overhead_leaves_no_less_than_ipv4_needs() {
        assert_eq!(less_overhead(1500, 50), Some(1450));
        assert_eq!(less_overhead(1500, 1432), Some(68));
        assert_eq!(less_overhead(1500, 1433), None);
        assert_eq!(less_overhead(1500, 1501), None);
    }
}
