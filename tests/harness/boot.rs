//! Boots of the host.

use std::fs;

use nix::mount::{MsFlags, mount};

use crate::Host;

impl Host {
    /// Imitates a reboot for leases: replaces the boot ID and the marker below `/run`.
    pub fn reboot(&self, boot_id: &str) {
        drop(fs::remove_file("/run/cni/host-local-boot"));
        self.show_boot_id(boot_id);
    }

    /// Shows another boot ID without a reboot, as in a container of a machine with its own ID.
    pub fn show_boot_id(&self, boot_id: &str) {
        let file = self.dir().join(format!("boot-{boot_id}"));
        fs::write(&file, format!("{boot_id}\n")).unwrap();
        let (known_by, nothing) = ("/proc/sys/kernel/random/boot_id", None::<&str>);
        mount(Some(&file), known_by, nothing, MsFlags::MS_BIND, nothing).unwrap();
    }
}
