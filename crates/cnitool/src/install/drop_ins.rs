//! Files that keep the host's network managers off the plugins' links.

use std::path::Path;

use cni::note;

use super::files::{Force, Wanted};

/// Those of them that are not there yet, of the managers that the host has.
pub fn wanted(force: Force) -> anyhow::Result<Vec<Wanted>> {
    let mut wanted = Vec::new();
    for DropIn {
        manager,
        path,
        content,
    } in DROP_INS
    {
        if !Path::new(manager).is_dir() {
            note(format_args!("{path}: not needed, there is no {manager}"));
            continue;
        }
        wanted.extend(Wanted::plan(path.into(), content.into(), force)?);
    }
    Ok(wanted)
}

struct DropIn {
    /// A directory that is there where whoever reads it is installed.
    manager: &'static str,
    path: &'static str,
    content: &'static str,
}

const DROP_INS: [DropIn; 3] = [
    DropIn {
        manager: "/etc/systemd",
        path: "/etc/systemd/network/05-cni.network",
        content: include_str!("../../../../conf-examples/host/systemd/network/05-cni.network"),
    },
    DropIn {
        manager: "/etc/systemd",
        path: "/etc/systemd/network/05-cni.link",
        content: include_str!("../../../../conf-examples/host/systemd/network/05-cni.link"),
    },
    DropIn {
        manager: "/etc/NetworkManager",
        path: "/etc/NetworkManager/conf.d/05-cni.conf",
        content: include_str!("../../../../conf-examples/host/NetworkManager/conf.d/05-cni.conf"),
    },
];
