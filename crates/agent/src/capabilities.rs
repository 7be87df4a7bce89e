//! Capabilities of the agent and of the plugins that it calls.

use anyhow::Context as _;
use caps::{CapSet, Capability, CapsHashSet};

/// Drops all capabilities except [`KEPT`] from the calling thread. Also drops them from its
/// bounding set, because the kernel gives each program that root executes, such as a plugin, all
/// capabilities of that set.
///
/// The caller must call this function before it starts a thread, because each thread has its own
/// capabilities.
pub(crate) fn drop_others() -> anyhow::Result<()> {
    let kept: CapsHashSet = KEPT.into_iter().collect();
    let held = caps::read(None, CapSet::Bounding).context("read the capabilities")?;
    let permitted = caps::read(None, CapSet::Permitted).context("read the capabilities")?;
    // Only a thread with CAP_SETPCAP may change its bounding set. Without CAP_SETPCAP, as with the
    // systemd unit and the `DaemonSet` in `conf-examples`, the set stays as systemd or the
    // container runtime limited it.
    if permitted.contains(&Capability::CAP_SETPCAP) {
        for other in held.difference(&kept) {
            let dropped = caps::drop(None, CapSet::Bounding, *other);
            dropped.with_context(|| format!("drop {other}"))?;
        }
    }
    let rest = permitted.intersection(&kept).copied().collect();
    // A program that root executes also gets the inheritable capabilities, even those outside the
    // bounding set (capabilities(7)).
    let none = CapsHashSet::new();
    caps::set(None, CapSet::Inheritable, &none).context("drop capabilities")?;
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &rest).context("drop capabilities")?;
    }
    Ok(())
}

/// Capabilities that the agent keeps.
///
/// - `CAP_NET_ADMIN`: links, `nf_tables`, `IPsec` policies, sysctls of the network;
/// - `CAP_NET_RAW`: pings of the part `cluster`, and legacy iptables, which the plugin `firewall` reads
///   and changes;
/// - `CAP_SYS_ADMIN`: plugins enter the namespaces of sandboxes;
/// - `CAP_SYS_PTRACE`: plugins open namespaces that a runtime names by `/proc/PID/ns/net`. Few
///   nodes need it, so the systemd unit and the `DaemonSet` in `conf-examples` do not grant it.
const KEPT: [Capability; 4] = [
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SYS_PTRACE,
];
