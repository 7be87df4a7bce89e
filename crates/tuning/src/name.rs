//! Names of sysctls.

use cni::{Error, InterfaceName};
use netns::Sysctl;

/// The name of a sysctl below `net`, in which `IFNAME` may stand for the interface.
///
/// The name cannot lead outside `net`, because none of its parts is `.` or `..`: dots separate the
/// parts, as in the Go plugin, and the interface in place of `IFNAME` is never called `.` or `..`.
///
/// Names that differ only in their separators (dots and slashes) are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SysctlName {
    /// The parts of the name, separated by slashes.
    path: String,
}

impl SysctlName {
    /// Parses a name whose parts are separated by dots or slashes.
    ///
    /// # Errors
    /// Code 7: the name is not below `net`, so the sysctl does not belong to the network namespace.
    pub fn parse(name: &str) -> Result<Self, Error> {
        let parts = name.split(['.', '/']).filter(|part| !part.is_empty());
        let parts: Vec<_> = parts.collect();
        match parts.as_slice() {
            ["net", _, ..] => Ok(Self {
                path: parts.join("/"),
            }),
            _ => Err(Error::invalid(
                format!("sysctl.{name}"),
                "only sysctls below net belong to the sandbox",
            )),
        }
    }

    /// Returns the sysctl, with `interface` in place of the first `IFNAME` in the name.
    pub fn sysctl(&self, interface: &InterfaceName) -> Sysctl {
        let path = self.path.replacen("IFNAME", interface.as_str(), 1);
        Sysctl::new(&path.split('/').collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> String {
        let name = SysctlName::parse(name).unwrap();
        name.sysctl(&"eth0.7".parse().unwrap()).key()
    }

    #[test]
    fn interface_is_one_part_and_separators_may_be_repeated() {
        for name in [
            "net.ipv4.conf.IFNAME.arp_filter",
            "net/ipv4/conf/IFNAME/arp_filter",
        ] {
            assert_eq!(key(name), "net.ipv4.conf.eth0/7.arp_filter");
        }
        assert_eq!(key("net..core//somaxconn."), "net.core.somaxconn");
        assert_eq!(key("net.IFNAME.IFNAME"), "net.eth0/7.IFNAME");
    }

    #[test]
    fn no_name_leaves_net() {
        for name in [
            "",
            "net",
            "kernel.hostname",
            "../net/core/x",
            "IFNAME.core.x",
            "vm/net/x",
        ] {
            let parsed = SysctlName::parse(name);
            let below_net = parsed
                .as_ref()
                .map(|it| it.sysctl(&"net".parse().unwrap()).key());
            assert!(
                below_net.is_err() || below_net.unwrap().starts_with("net."),
                "{name}"
            );
        }
        for name in [
            "net/../kernel/hostname",
            "net/../../etc/passwd",
            "net/./core/x",
        ] {
            assert!(
                !key(name).split('.').any(|part| part.starts_with('/')),
                "{name}"
            );
            assert!(key(name).starts_with("net."), "{name}");
        }
    }
}
