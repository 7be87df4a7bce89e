//! Makes netfilter see the frames that the bridge forwards, so that Services work between its pods.

use attach::{BRIDGE_NF_CALL, Differences, nf_call_sysctls, sees_frames};
use cni::{Attachment, CniArgs, Error, note};
use netlink::{Connection, Link, LinkChange, LinkKind, NfCall, Request};
use netns::Sysctl;
use serde_json::Value;

/// What ADD sets so that netfilter sees bridged frames: flags of the network's own bridge, or
/// sysctls, which concern all bridges of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameFilter {
    /// Nothing.
    None,
    /// The flags.
    Bridge,
    /// The flags, unless a virtual machine is on the bridge, and for a pod of Kubernetes the sysctls,
    /// if no bridge of another program has a port.
    Pods,
    /// The sysctls.
    Host,
}

impl FrameFilter {
    /// Parses `key`, the value of `bridgeNfCall`. `is_routed` is whether the network has a gateway
    /// or masquerading: without the key, only such a network needs netfilter.
    pub(crate) fn parse(key: Option<&Value>, is_routed: bool) -> Result<Self, Error> {
        Ok(match key {
            None if is_routed => Self::Pods,
            None | Some(Value::Bool(false)) => Self::None,
            Some(Value::Bool(true)) => Self::Host,
            Some(Value::String(it)) if it == "host" => Self::Host,
            Some(Value::String(it)) if it == "bridge" => Self::Bridge,
            Some(other) => {
                let reason = format!(r#"{other} is none of "bridge", "host", true and false"#);
                return Err(Error::invalid("bridgeNfCall", reason));
            }
        })
    }

    /// Sets flags and sysctls, and returns the bridge with its flags. Writes a message to standard
    /// error if it changes a sysctl, or if the module `br_netfilter` is missing.
    ///
    /// # Errors
    /// - Code 100: the kernel refuses a flag.
    /// - Code 100: a sysctl exists and cannot be set.
    pub(crate) fn ensure(
        self,
        host: &Connection,
        bridge: Link,
        args: &CniArgs,
    ) -> anyhow::Result<Link> {
        if self == Self::None {
            return Ok(bridge);
        }
        let sysctls = nf_call_sysctls()?;
        if let Some(machine) = self.spared_machine(host, &bridge, &sysctls)? {
            note!(
                "{machine} is a port of {}, like those of virtual machines: netfilter sees no frames of \
                 the bridge, so Services may not work between its pods; bridgeNfCall: \"bridge\" shows \
                 them to netfilter, whose FORWARD rules then apply to the machines, too",
                bridge.name
            );
            return Ok(bridge);
        }
        if sysctls.contains(&None) {
            note(
                "the kernel module br_netfilter is not loaded, so Services do not work between pods of this \
                 node; load it with: modprobe br_netfilter",
            );
        }
        let is_off = sysctls.iter().flatten().any(|it| it != "1");
        let is_of_pod = args.value("K8S_POD_NAME").is_some();
        let is_for_host = match self {
            Self::None | Self::Bridge => false,
            Self::Pods => is_off && is_of_pod && !has_other_bridge_ports(host, &bridge)?,
            Self::Host => is_off,
        };
        if is_for_host {
            set_sysctls()?;
        }
        match self {
            Self::Host => Ok(bridge),
            _ => set_flags(host, bridge),
        }
    }

    /// Returns the name of a port of the bridge that a virtual machine may have, if its frames bypass
    /// netfilter and the configuration does not ask for another thing.
    fn spared_machine(
        self,
        host: &Connection,
        bridge: &Link,
        sysctls: &[Option<String>; 2],
    ) -> anyhow::Result<Option<String>> {
        let seen = sees_frames(bridge, sysctls.each_ref().map(Option::as_deref));
        if self != Self::Pods || has_flags(bridge) || seen == [true; 2] {
            return Ok(None);
        }
        let mut ports = host.ports(bridge.index)?.into_iter();
        let machine = ports.find(|it| matches!(it.kind, LinkKind::Tap(_)) && !is_tagged(it));
        Ok(machine.map(|it| it.name))
    }

    /// Adds a difference to `found` for each flag or sysctl that [`Self::ensure`] would set. Without
    /// the module `br_netfilter`, there is none.
    pub(crate) fn compare(
        self,
        host: &Connection,
        bridge: &Link,
        found: &mut Differences,
    ) -> anyhow::Result<()> {
        if self == Self::None {
            return Ok(());
        }
        let sysctls = nf_call_sysctls()?;
        if self.spared_machine(host, bridge, &sysctls)?.is_some() {
            return Ok(());
        }
        let seen = sees_frames(bridge, sysctls.each_ref().map(Option::as_deref));
        for ((name, value), is_seen) in BRIDGE_NF_CALL.iter().zip(sysctls).zip(seen) {
            let Some(value) = value else { continue };
            let key = Sysctl::new(&["net", "bridge", name]).key();
            if self == Self::Host {
                found.unless(value == "1", || format!("sysctl {key} is {value}, not 1"));
            } else {
                found.unless(is_seen, || {
                    let flag = name.trim_start_matches("bridge-").replace('-', "_");
                    format!("{flag} of bridge {} and sysctl {key} are 0", bridge.name)
                });
            }
        }
        Ok(())
    }
}

/// Returns whether a bridge other than `bridge` has a port that is no host end of this suite, like
/// those of virtual machines.
fn has_other_bridge_ports(host: &Connection, bridge: &Link) -> anyhow::Result<bool> {
    for other in host.bridges()? {
        if other.index != bridge.index && !host.ports(other.index)?.iter().all(is_tagged) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether the port has the tag of an attachment.
pub(crate) fn is_tagged(port: &Link) -> bool {
    port.alias.as_deref().is_some_and(Attachment::is_owner)
}

/// Returns whether the bridge has both flags. A kernel without `CONFIG_BRIDGE_NETFILTER` reports no
/// flags and ignores them.
fn has_flags(bridge: &Link) -> bool {
    bridge.nf_call.is_none_or(|it| it == BOTH)
}

const BOTH: NfCall = NfCall { v4: true, v6: true };

fn set_flags(host: &Connection, bridge: Link) -> anyhow::Result<Link> {
    if has_flags(&bridge) {
        return Ok(bridge);
    }
    host.execute([Request::change_link(
        &bridge.name,
        &LinkChange::NfCall(BOTH),
    )])?;
    Ok(Link {
        nf_call: Some(BOTH),
        ..bridge
    })
}

/// Sets the sysctls `bridge-nf-call-iptables` and `bridge-nf-call-ip6tables` to 1. If the function
/// changes one, it writes a message to standard error, because they concern all bridges of the host.
fn set_sysctls() -> anyhow::Result<()> {
    let mut changed = Vec::new();
    for name in BRIDGE_NF_CALL {
        let sysctl = Sysctl::new(&["net", "bridge", name]);
        match sysctl.replace("1") {
            Err(error) if error.is_not_found() => {}
            was => changed.extend(was?.map(|_| sysctl.key())),
        }
    }
    if !changed.is_empty() {
        note!(
            "set {} from 0 to 1, as Services need: frames that any bridge of this host forwards, such as \
             those of virtual machines, now pass the firewall's FORWARD rules; bridgeNfCall: \"bridge\" \
             leaves the value alone",
            changed.join(" and ")
        );
    }
    Ok(())
}
