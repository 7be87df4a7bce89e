//! Namespaces of a test.

use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Moves the calling thread into new network and mount namespaces, with an empty /run and /var/lib
/// and without configurations of container runtimes.
pub(crate) fn enter_namespaces() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
    let nothing = None::<&str>;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(nothing, "/", nothing, private, nothing)?;
    for dir in ["/run", "/var/lib"] {
        mount(
            Some("tmpfs"),
            dir,
            Some("tmpfs"),
            MsFlags::empty(),
            Some("mode=755"),
        )?;
    }
    // doctor reads the configurations of container runtimes that this machine may have.
    for dir in RUNTIMES.iter().filter(|it| Path::new(it).is_dir()) {
        mount(
            Some("tmpfs"),
            *dir,
            Some("tmpfs"),
            MsFlags::empty(),
            nothing,
        )?;
    }
    // The existing mount shows another network's links.
    mount(
        Some("sysfs"),
        "/sys",
        Some("sysfs"),
        MsFlags::empty(),
        nothing,
    )
}

/// Directories with configurations of container runtimes.
const RUNTIMES: [&str; 4] = [
    "/etc/containerd",
    "/etc/crio",
    "/etc/containers",
    "/usr/share/containers",
];
