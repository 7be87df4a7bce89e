//! The configuration: which device it means.

use std::path::{Component, Path, PathBuf};

use cni::keys::parsed;
use cni::result::Dns;
use cni::{Error, Network, keys};
use netlink::MacAddress;

use crate::raw::RawConfig;

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The device to move.
    pub device: Selector,
    /// DNS settings that replace those of the IPAM plugin, if configured.
    pub dns: Option<Dns>,
}

/// What identifies a device.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum Selector {
    /// Its name or an alternative name.
    #[display("link {_0} (`device`)")]
    Name(String),
    /// Its MAC.
    #[display("link with the MAC {_0} (`hwaddr`)")]
    Mac(MacAddress),
    /// Its directory below `/sys/devices`, or below a bus of `/sys/bus`.
    #[display("link of the device {}", _0.display())]
    Directory(PathBuf),
    /// A PCI device whose driver is for programs such as DPDK: there is no link to move.
    #[display("link of a device that a program uses")]
    UserSpace,
}

impl Config {
    /// Parses the configuration.
    ///
    /// # Errors
    /// Code 7: a value is invalid, no key names a device, or the PCI device has no driver.
    pub fn parse(network: &Network) -> Result<Self, Error> {
        let raw: RawConfig = network.config()?;
        let on_bus = on_bus(&raw.pci_bus_id, &network.key::<String>(DEVICE_ID)?)?;
        let named = Selector::parse(&raw)?;
        let device = match on_bus {
            Some(Selector::UserSpace) => on_bus,
            _ => named.or(on_bus),
        };
        let missing = || {
            let reason =
                "one of \"device\", \"hwaddr\", \"kernelpath\" and \"pciBusID\" is required";
            Error::invalid("device", reason)
        };
        Ok(Self {
            device: device.ok_or_else(missing)?,
            dns: keys::dns(raw.dns),
        })
    }
}

impl Selector {
    /// Returns the device that a key names, except for `pciBusID`; `None` if no key has a value.
    ///
    /// # Errors
    /// Code 7: a value is invalid.
    pub(crate) fn parse(raw: &RawConfig) -> Result<Option<Self>, Error> {
        Ok(match (&raw.device, &raw.hwaddr, &raw.kernelpath) {
            (name, ..) if !name.is_empty() => Some(Self::Name(name.clone())),
            (_, mac, _) if !mac.is_empty() => Some(Self::Mac(parsed(mac, "hwaddr")?)),
            (.., path) if !path.is_empty() => Some(Self::Directory(kernel_path(path)?)),
            _ => None,
        })
    }
}

/// Returns the device that `pciBusID` names. The runtime's `device_id`, a PCI or auxiliary device,
/// takes precedence.
///
/// # Errors
/// Code 7: there is no such device, or the PCI device has no driver.
fn on_bus(pci_bus_id: &str, device_id: &str) -> Result<Option<Selector>, Error> {
    let (key, name, buses) = match (pci_bus_id, device_id) {
        ("", "") => return Ok(None),
        (name, "") => ("pciBusID", name, &[PCI][..]),
        (_, name) => (DEVICE_ID, name, &[PCI, AUXILIARY][..]),
    };
    for bus in buses {
        let directory = bus_directory(bus, name, key)?;
        if *bus == PCI && directory.exists() && is_for_user_space(key, &directory)? {
            return Ok(Some(Selector::UserSpace));
        }
        if directory.exists() {
            return Ok(Some(Selector::Directory(directory)));
        }
    }
    let reason = format!(
        "there is no device {name}; `ls {}` lists them",
        buses.join(" ")
    );
    Err(Error::invalid(key, reason))
}

/// Returns the directory of the device `name` on a bus.
fn bus_directory(bus: &str, name: &str, key: &str) -> Result<PathBuf, Error> {
    if name.contains('/') || [".", ".."].contains(&name) {
        return Err(Error::invalid(key, format!("{name:?} is no device's name")));
    }
    Ok(Path::new(bus).join(name))
}

fn kernel_path(text: &str) -> Result<PathBuf, Error> {
    let path = PathBuf::from(text);
    let is_below = path.starts_with("/sys/devices") && path != Path::new("/sys/devices");
    if !is_below || path.components().any(|it| it == Component::ParentDir) {
        let reason = format!("{text:?} is no absolute path below /sys/devices");
        return Err(Error::invalid("kernelpath", reason));
    }
    Ok(path)
}

/// Returns whether the driver of the PCI device with this directory, which `key` names, hands the
/// device to a program.
fn is_for_user_space(key: &str, directory: &Path) -> Result<bool, Error> {
    let driver = directory.join("driver").canonicalize().map_err(|error| {
        let device = directory.display();
        let reason = format!("{device} has no driver ({error}); bind one");
        Error::invalid(key, reason)
    })?;
    let name = driver.file_name().and_then(|it| it.to_str());
    Ok(name.is_some_and(|it| USER_SPACE_DRIVERS.contains(&it)))
}

/// Drivers that hand a device to a program such as DPDK. The kernel then has no link for it.
const USER_SPACE_DRIVERS: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

const DEVICE_ID: &str = "runtimeConfig.deviceID";
const PCI: &str = "/sys/bus/pci/devices";
const AUXILIARY: &str = "/sys/bus/auxiliary/devices";

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(raw: &RawConfig) -> Option<Selector> {
        Selector::parse(raw).unwrap()
    }

    #[test]
    fn first_key_with_a_value_counts() {
        let mut raw = RawConfig {
            device: "ens5".into(),
            hwaddr: "02-00-00-00-00-01".into(),
            kernelpath: "/sys/devices/pci0000:00/0000:00:19.0".into(),
            ..RawConfig::default()
        };
        assert_eq!(selector(&raw), Some(Selector::Name("ens5".into())));
        raw.device.clear();
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        assert_eq!(selector(&raw), Some(Selector::Mac(mac)));
        raw.hwaddr.clear();
        let path = PathBuf::from(&raw.kernelpath);
        assert_eq!(selector(&raw), Some(Selector::Directory(path)));
        raw.kernelpath.clear();
        assert_eq!(selector(&raw), None);
    }

    #[test]
    fn paths_and_names_lead_nowhere_else() {
        let refused = ["/sys/devices", "/sys/devices/../class", "/proc", "devices"];
        for path in refused {
            kernel_path(path).unwrap_err();
        }
        for name in ["..", "a/../b"] {
            bus_directory(PCI, name, "pciBusID").unwrap_err();
        }
    }

    #[test]
    fn missing_device_is_reported_with_its_key() {
        for (pci_bus_id, device_id, key) in [
            ("ffff:ff:1f.9", "", "pciBusID"),
            ("0000:00:00.0", "ffff:ff:1f.9", DEVICE_ID),
        ] {
            let error = on_bus(pci_bus_id, device_id).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
            assert!(error.contains("no device ffff:ff:1f.9"), "{error}");
        }
    }
}
