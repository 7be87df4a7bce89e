//! Files that make the host's network managers ignore the plugins' links.

use std::path::Path;

use cni::note;

/// Paths and contents of the files for the managers that the host has. A file for another one is noted on stderr.
pub fn needed() -> impl Iterator<Item = (&'static str, &'static str)> {
    DROP_INS.into_iter().filter_map(|it| {
        let is_needed = Path::new(it.manager).is_dir();
        if !is_needed {
            let (path, manager) = (it.path, it.manager);
            note(format_args!("{path}: not needed, there is no {manager}"));
        }
        is_needed.then_some((it.path, it.content))
    })
}

/// Returns whether the files match a link of this name.
pub fn cover(link: &str) -> bool {
    let names = NETWORK.lines().find_map(|it| it.strip_prefix("Name="));
    let mut names = names.unwrap_or_default().split_whitespace();
    names.any(|name| match name.strip_suffix('*') {
        Some(beginning) => link.starts_with(beginning),
        None => link == name,
    })
}

struct DropIn {
    /// A directory that exists if the manager is installed.
    manager: &'static str,
    path: &'static str,
    content: &'static str,
}

const DROP_INS: [DropIn; 3] = [
    DropIn {
        manager: "/etc/systemd",
        path: "/etc/systemd/network/05-cni.network",
        content: NETWORK,
    },
    DropIn {
        manager: "/etc/systemd",
        path: "/etc/systemd/network/05-cni.link",
        content: include_str!("../../../conf-examples/host/systemd/network/05-cni.link"),
    },
    DropIn {
        manager: "/etc/NetworkManager",
        path: "/etc/NetworkManager/conf.d/05-cni.conf",
        content: include_str!("../../../conf-examples/host/NetworkManager/conf.d/05-cni.conf"),
    },
];

const NETWORK: &str = include_str!("../../../conf-examples/host/systemd/network/05-cni.network");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_for_the_same_links() {
        let names = ["cni*", "cbr0", "veth*", "bwp*"];
        for (place, key) in [(0, "Name"), (1, "OriginalName")] {
            let line = format!("\n{key}={}\n", names.join(" "));
            assert!(DROP_INS[place].content.contains(&line), "{line}");
        }
        let names = names.map(|it| format!("interface-name:{it}"));
        let line = format!("\nmatch-device={}\n", names.join(";"));
        assert!(DROP_INS[2].content.contains(&line), "{line}");
        let covered = ["cni0", "cbr0", "veth1", "bwp2", "cbr01", "br0"].map(cover);
        assert_eq!(covered, [true, true, true, true, false, false]);
    }
}
