//! Capabilities of the agent and of the plugins that it calls.

use anyhow::Context as _;
use caps::{CapSet, Capability, CapsHashSet};

/// Drops all capabilities except [`KEPT`], also from the bounding set. The agent calls plugins as
/// root, and the kernel gives each program that root executes all capabilities of the bounding set.
///
/// The caller has to call this function before it starts a thread, because each thread has its own
/// capabilities.
///
/// # Errors
/// The kernel refuses to read or change capabilities.
pub(crate) fn drop_others() -> anyhow::Result<()> {
    let kept: CapsHashSet = KEPT.into_iter().collect();
    let held = caps::read(None, CapSet::Bounding).context("read the capabilities")?;
    let permitted = caps::read(None, CapSet::Permitted).context("read the capabilities")?;
    // Without CAP_SETPCAP, as in a container with fewer capabilities, the bounding set stays.
    if permitted.contains(&Capability::CAP_SETPCAP) {
        for other in held.difference(&kept) {
            let dropped = caps::drop(None, CapSet::Bounding, *other);
            dropped.with_context(|| format!("drop {other}"))?;
        }
    }
    let rest = permitted.intersection(&kept).copied().collect();
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &rest).context("drop capabilities")?;
    }
    Ok(())
}

/// Capabilities that the agent keeps.
///
/// - `CAP_NET_ADMIN`: links, `nf_tables`, `IPsec` policies, sysctls of the network;
/// - `CAP_NET_RAW`: legacy iptables, which the plugin `firewall` reads and changes;
/// - `CAP_SYS_ADMIN`: plugins enter the namespaces of sandboxes;
/// - `CAP_SYS_PTRACE`: opens namespaces that a runtime names by `/proc/PID/ns/net`. Few nodes need
///   it, so the unit and the `DaemonSet` do not grant it.
const KEPT: [Capability; 4] = [
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SYS_PTRACE,
];
