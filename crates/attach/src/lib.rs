//! Connects a sandbox to the host by a veth pair, for all interface plugins that create one.
//!
//! The central type is [`Desired`], the desired state on the host and in the sandbox. A plugin
//! computes it in [`Topology::desired`] from its configuration, the state of the bridge and the
//! leased addresses. ADD applies this state. CHECK compares the kernel with it. RELOAD, a verb of
//! this suite, restores the attachment's `nf_tables` elements after a reload of the host's firewall.
//! [`plugin()`] returns the plugin with these verbs.
//!
//! An attachment is one interface of one container in one network. Its tag,
//! [`cni::Attachment::owner`], is the alias of the host's end of the veth pair and the comment of
//! each `nf_tables` element. The name of the host's end is derived from the attachment, too.
//! DEL and GC recognise the objects of an attachment by this name and the tag. They also
//! recognise a host's end whose name or alias an operator has changed (`is_host_end` in
//! `names.rs`).
//!
//! This crate configures the ports of a bridge. The `bridge` plugin creates the bridge and parses
//! the keys that configure it. Without a bridge, the host's end of the veth pair has the gateway
//! addresses (`routed.rs`).
//!
//! The module [`single`] does the same for links that live in a sandbox alone.
//!
//! [`OwnerFiles`] stores one file for each attachment, usually the record that later verbs read.
//! Plugins that create no veth pair use it: `portmap`, `firewall` and `bandwidth`.
//! [`SandboxRecord`] is such a record of what `sbr` and `vrf` change in a sandbox, with DEL and GC; they
//! hold a [`SandboxLock`] meanwhile.
//!
//! "The Go plugins" in the comments are those of containernetworking/plugins.

mod add;
mod addressing;
mod check;
mod del;
mod desired;
mod differences;
mod facts;
mod frames;
mod gateway;
mod gateway_conflict;
mod guard;
mod hardening;
mod identity;
mod keys;
mod lease;
mod link_routes;
mod masquerade;
mod mtu;
mod names;
mod owner_files;
mod protection;
mod reload;
mod reversible;
mod rollback;
mod routed;
mod sandbox;
mod sandbox_lock;
mod sandbox_record;
pub mod single;
mod source_rules;
mod standby;
mod witness;

use cni::{Plugin, SpecVersion};

pub use self::facts::{MASQUERADE, missing_pairs};
pub use add::{interface, placed};
pub use addressing::{Addressing, Gateway};
pub use check::compare_link;
pub use cni::keys::{RawDns, dns};
pub use del::{delete_stale_links, find_host_link, forward, remove_stale_elements};
pub use desired::{
    Container, ContainerLink, Desired, HostSide, OtherAddress, Port, PortVlanSet, Topology,
    no_port_left,
};
pub use differences::Differences;
pub use frames::{BRIDGE_NF_CALL, FRAMES_TABLE, nf_call_sysctls, sees_frames};
pub use gateway::is_in_the_way;
pub use gateway_conflict::{GatewayConflict, GatewayRefusal};
pub use guard::{Guard, Removal, coded, dry_run, tables, take_back};
pub use hardening::{HOST_EXPOSED, harden};
pub use keys::{Backend, RawMtu, asked_mac, configured_mac};
pub use lease::{Lease, uses_link};
pub use link_routes::{MAIN_TABLE, done, link_routes, restore_routes};
pub use masquerade::{
    MASQUERADE_TABLE, Masquerade, RawMasquerade, lacks_cluster_networks, set_cluster_networks,
    stands_by,
};
pub use mtu::MtuChoice;
pub use names::{
    HOST_LINK_PREFIX, HostEnd, bridge_mac, derived_mac, host_link_name, is_host_end,
    is_host_end_of, marked_mac,
};
pub use owner_files::{OwnerFiles, Retired, Writing};
pub use protection::Protection;
pub use reversible::{Reversible, make};
pub use rollback::Leased;
pub use sandbox::Sandbox;
pub use sandbox_lock::SandboxLock;
pub use sandbox_record::{SandboxRecord, enter};
pub use source_rules::{Ruled, SourceRules, is_rule_of};
pub use witness::{Presence, Witness};

/// Returns the plugin that connects a sandbox as `T` describes, with its page for operators.
pub const fn plugin<T: Topology>(page: &'static str) -> Plugin {
    Plugin {
        name: T::NAME,
        page,
        spec_versions: SpecVersion::ALL,
        add: add::add::<T>,
        del: del::del::<T>,
        check: check::check::<T>,
        status: check::status::<T>,
        gc: del::gc,
        reload: Some(reload::reload::<T>),
    }
}

/// Maximum number of ports of a bridge: `BR_MAX_PORTS` in `net/bridge/br_private.h` minus 1,
/// because the kernel reserves the port number 0 (`find_portno()` in `net/bridge/br_if.c`).
pub const MAX_PORTS: usize = 1023;
