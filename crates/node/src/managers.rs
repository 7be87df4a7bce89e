//! Network managers of the node: udev, systemd-networkd, `NetworkManager`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use netlink::Link;

/// What the network managers do to links of this node.
#[derive(Debug, Default)]
pub struct Managers {
    /// Links that systemd-networkd or `NetworkManager` manages.
    pub managed: Vec<Managed>,
    /// The `.link` file whose `MACAddressPolicy` makes udev replace the MACs of new links; `None`
    /// if no file does.
    pub mac_policy: Option<PathBuf>,
}

/// A link that a network manager manages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Managed {
    /// The link's name.
    pub link: String,
    /// The network manager's name.
    pub by: &'static str,
    /// The network manager's configuration file for the link, if the manager reports it.
    pub file: Option<String>,
}

impl Managers {
    pub(super) fn read(links: &[Link]) -> Self {
        let links = links.iter();
        let managed = links.flat_map(|link| [networkd(link), network_manager(link)]);
        Self {
            managed: managed.flatten().collect(),
            mac_policy: mac_policy(&LINK_FILES.map(Path::new)),
        }
    }
}

/// Returns a [`Managed`] for the link if systemd-networkd manages it. Returns `None` if
/// systemd-networkd does not manage the link, or has no state file of it.
fn networkd(link: &Link) -> Option<Managed> {
    let state = text_of(Path::new(&format!("{NETWORKD}/{}", link.index)))?;
    let is_managed = value(&state, "ADMIN_STATE").is_some_and(|it| it != "unmanaged");
    is_managed.then(|| Managed {
        link: link.name.clone(),
        by: "systemd-networkd",
        file: value(&state, "NETWORK_FILE").map(str::to_owned),
    })
}

/// Returns a [`Managed`] for the link if `NetworkManager` manages it. Returns `None` if
/// `NetworkManager` does not manage the link, or has no state file of it.
fn network_manager(link: &Link) -> Option<Managed> {
    let state = text_of(Path::new(&format!("{NETWORK_MANAGER}/{}", link.index)))?;
    (value(&state, "managed") == Some("true")).then(|| Managed {
        link: link.name.clone(),
        by: "NetworkManager",
        file: None,
    })
}

fn value<'a>(state: &'a str, key: &str) -> Option<&'a str> {
    let mut values = state.lines().filter_map(|line| line.split_once('='));
    values.find_map(|(found, value)| (found == key).then_some(value))
}

/// Returns the `.link` file whose `MACAddressPolicy` is set, but not to `none`; `None` if there is
/// no such file. Of several such files, returns the first by name. A file hides files of the same
/// name in later directories (systemd.link(5)).
fn mac_policy(directories: &[&Path]) -> Option<PathBuf> {
    let mut files = BTreeMap::new();
    for directory in directories.iter().rev() {
        for file in fs::read_dir(directory).into_iter().flatten().flatten() {
            files.insert(file.file_name(), file.path());
        }
    }
    let is_link = |path: &&PathBuf| path.extension().is_some_and(|it| it == "link");
    let says_so = |path: &&PathBuf| {
        let text = text_of(path).unwrap_or_default();
        value(&text, "MACAddressPolicy").is_some_and(|policy| policy != "none")
    };
    files.values().filter(is_link).find(says_so).cloned()
}

fn text_of(path: &Path) -> Option<String> {
    String::from_utf8(cni::files::read(path).ok()?).ok()
}

const NETWORKD: &str = "/run/systemd/netif/links";
const NETWORK_MANAGER: &str = "/run/NetworkManager/devices";

/// Directories of `.link` files. The first one has precedence.
const LINK_FILES: [&str; 4] = [
    "/etc/systemd/network",
    "/run/systemd/network",
    "/usr/local/lib/systemd/network",
    "/usr/lib/systemd/network",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_is_that_of_the_file_that_hides_others() {
        let [first, last] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let directories = [first.path(), last.path()];
        let policy = "[Link]\nNamePolicy=keep\nMACAddressPolicy=persistent\n";
        fs::write(last.path().join("99-default.link"), policy).unwrap();
        fs::write(last.path().join("10-other.network"), policy).unwrap();
        assert_eq!(
            mac_policy(&directories),
            Some(last.path().join("99-default.link"))
        );
        let hiding = policy.replace("persistent", "none");
        fs::write(first.path().join("99-default.link"), hiding).unwrap();
        assert_eq!(mac_policy(&directories), None);
    }
}
