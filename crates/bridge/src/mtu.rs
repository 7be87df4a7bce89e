//! MTU of the pair if the configuration contains none.

use netlink::{Link, LinkKind};

/// The MTU and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Detected {
    /// MTU in bytes.
    pub mtu: u32,
    /// Reason for the line on standard error.
    pub why: String,
}

/// Returns the smallest MTU of `uplinks`, the links of the default routes of both families. Returns
/// `None` without one.
pub(crate) fn of_default_routes(uplinks: &[Link]) -> Option<Detected> {
    smallest(uplinks.iter(), "carries a default route")
}

/// Returns the smallest MTU of links that are up and not virtual.
pub(crate) fn of_physical_links(links: &[Link]) -> Option<Detected> {
    let is_physical = |link: &&Link| link.is_up && link.kind == LinkKind::Physical;
    smallest(
        links.iter().filter(is_physical),
        "is up, while no link carries a default route",
    )
}

fn smallest<'a>(links: impl Iterator<Item = &'a Link>, reason: &str) -> Option<Detected> {
    let link = links.min_by_key(|link| link.mtu)?;
    Some(Detected {
        mtu: link.mtu,
        why: format!("the MTU of {}, which {reason}", link.name),
    })
}

/// Returns the MTU minus `overhead`, or `None` if it is below the minimum of IPv4.
pub(crate) fn less_overhead(mtu: u32, overhead: u32) -> Option<u32> {
    mtu.checked_sub(overhead).filter(|rest| *rest >= SMALLEST)
}

/// Ethernet's MTU in bytes, for a host without links.
pub(crate) const FALLBACK: u32 = 1500;

/// Minimum MTU of IPv4 (RFC 791), in bytes.
const SMALLEST: u32 = 68;

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
        let detected = of_default_routes(&uplinks).unwrap();
        assert_eq!(
            (detected.mtu, detected.why.as_str()),
            (1420, "the MTU of wg0, which carries a default route")
        );
        assert_eq!(of_default_routes(&[]), None);
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
        assert_eq!(of_physical_links(&links).unwrap().mtu, 1450);
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
