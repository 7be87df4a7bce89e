//! Connects a sandbox to the host by a veth pair, for every plugin that makes one.
//!
//! The centre is [`Desired`]: what an attachment shall have on both sides. A plugin computes it, in
//! [`Topology::desired`], from its configuration, the host and the addresses that IPAM leased.
//! [`add`] applies it, [`check`] compares it, and [`reload`] applies its `nf_tables` part. [`del`] and
//! [`gc`] remove by owner: they need neither the configuration nor the sandbox.
//!
//! This crate does not know what the host's end of the pair joins, or which keys ask for what.

mod add;
mod addressing;
mod check;
mod del;
mod desired;
mod differences;
mod frames;
mod gateway;
mod gc;
mod guard;
mod keys;
mod masquerade;
mod mtu;
mod names;
mod protection;
mod reload;
mod rollback;
mod sandbox;

use std::process::ExitCode;

use cni::Plugin;
use detach::Task;

pub use add::add;
pub use addressing::{Addressing, Gateway};
pub use check::check;
pub use del::{del, forward};
pub use desired::{
    Container, ContainerLink, Desired, HostSide, OtherAddress, Port, PortVlanSet, Topology,
    no_port_left,
};
pub use differences::Differences;
pub use frames::{BRIDGE_NF_CALL, FRAMES_TABLE};
pub use gc::gc;
pub use guard::{Guard, MacCheck, tables};
pub use keys::{Backend, KNOWN_ARGS, RawDns, asked_mac, dns};
pub use masquerade::{MASQUERADE_TABLE, Masquerade, RawMasquerade};
pub use mtu::MtuChoice;
pub use names::{HOST_LINK_PREFIX, bridge_mac, derived_mac};
pub use reload::reload;

/// Runs the verb that the environment asks for, or a task that another process of this executable left.
pub fn run(plugin: &Plugin) -> ExitCode {
    match Task::of_this_process() {
        Some(task) => netlink::finish(&task),
        None => cni::run(plugin),
    }
}

/// How many ports a bridge has at most: `BR_MAX_PORTS` in `net/bridge/br_private.h`, less the bridge
/// itself.
pub const MAX_PORTS: usize = 1023;
