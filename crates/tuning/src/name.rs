//! Names of sysctls.

use std::cmp::Ordering;

use cni::{Error, InterfaceName};
use netns::Sysctl;

/// The name of a sysctl below `net`, in which `IFNAME` may stand for the interface.
///
/// The name cannot lead outside `net`, because none of its parts is `.` or `..`: dots separate the
/// parts, as in the Go plugin, and the interface in place of `IFNAME` is never called `.` or `..`.
///
/// Names that differ only in their separators (dots and slashes) are equal.
#[derive(Debug, Clone)]
pub struct SysctlName {
    written: String,
    parts: Vec<String>,
}

impl SysctlName {
    /// Parses a name whose parts are separated by dots or slashes.
    ///
    /// # Errors
    /// Code 7: the name is not below `net`, so the sysctl does not belong to the network namespace.
    pub fn parse(name: String) -> Result<Self, Error> {
        let parts = name.split(['.', '/']).filter(|part| !part.is_empty());
        let parts: Vec<_> = parts.map(str::to_owned).collect();
        match parts.as_slice() {
            [first, _, ..] if first == "net" => Ok(Self {
                written: name,
                parts,
            }),
            _ => Err(Error::invalid(
                format!("sysctl.{name}"),
                "only sysctls below net belong to the sandbox",
            )),
        }
    }

    /// Returns the name as written in the configuration. The operator's allowlist is matched
    /// against this form.
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// Returns the sysctl, with `interface` in place of the first `IFNAME` in the name.
    pub fn sysctl(&self, interface: &InterfaceName) -> Sysctl {
        let path = self.parts.join("/");
        let path = path.replacen("IFNAME", interface.as_str(), 1);
        Sysctl::new(&path.split('/').collect::<Vec<_>>())
    }
}

impl PartialEq for SysctlName {
    fn eq(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}

impl Eq for SysctlName {}

impl PartialOrd for SysctlName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SysctlName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts.cmp(&other.parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> String {
        let name = SysctlName::parse(name.to_owned()).unwrap();
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
            let parsed = SysctlName::parse(name.to_owned());
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
