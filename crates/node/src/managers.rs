//! Network managers of the node: systemd-networkd and `NetworkManager`.

use std::path::Path;

use netlink::Link;

/// What the network managers do to links of this node.
#[derive(Debug, Default)]
pub struct Managers {
    /// Links that systemd-networkd or `NetworkManager` manages.
    pub managed: Vec<Managed>,
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

fn text_of(path: &Path) -> Option<String> {
    String::from_utf8(cni::files::read(path).ok()?).ok()
}

const NETWORKD: &str = "/run/systemd/netif/links";
const NETWORK_MANAGER: &str = "/run/NetworkManager/devices";
