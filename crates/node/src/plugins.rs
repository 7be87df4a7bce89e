//! The one list of the plugins.

use facts::Facts;

/// Lists the plugins' libraries, and what the tools know of each plugin.
macro_rules! plugins {
    ($($library:ident),*) => {
        pub use {$($library),*};

        /// What the tools know of each plugin.
        pub const PLUGINS: &[Facts] = &[$($library::FACTS),*];
    };
}

plugins!(
    bridge,
    ptp,
    macvlan,
    ipvlan,
    vlan,
    dummy,
    host_device,
    tap,
    host_local,
    static_ipam,
    dhcp,
    loopback,
    portmap,
    bandwidth,
    firewall,
    tuning,
    sbr,
    vrf
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_is_that_of_the_suite() {
        let listed = cni::suite().map(|it| it.0);
        assert!(listed.eq(PLUGINS.iter().map(|it| it.name)));
    }
}
