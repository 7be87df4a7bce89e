//! Links, addresses, routes and qdiscs of one network namespace over rtnetlink, and `IPsec`
//! policies that block packets.
//!
//! A [`Connection`] belongs to the namespace in which it was opened. Its methods block until the
//! kernel has answered. The kernel completes some changes only after its answer, for example when a
//! link has to come up. A [`Monitor`] waits for such a change, up to a deadline.
//!
//! This crate does not know containers or attachments and makes no decisions. It reports the
//! kernel's state and carries out requests. [`Socket`] also serves other netlink families.

mod address;
pub mod attributes;
mod bucket;
mod conf;
mod connection;
mod counters;
mod error;
mod events;
mod fair_queue;
mod filter;
mod forwarding;
#[cfg(fuzzing)]
pub mod fuzzing;
mod ip_version;
mod link;
mod link_change;
mod links;
mod lookup;
mod mac;
mod message;
mod monitor;
mod namespace;
mod neighbour;
mod new_links;
mod policy;
mod port_flag;
mod qdisc;
mod removal;
mod request;
mod route;
mod rule;
mod saved_address;
mod saved_route;
mod socket;
mod veth;
mod vlan;

pub use address::{Address, Dad};
pub use bucket::{HeldBucket, TokenBucket};
pub use conf::{Ipv6, LinkLocalOrigin};
pub use connection::Connection;
pub use counters::{CountedQdisc, Counters, LinkCounters, QueueCounters};
pub use error::{Error, created, found};
pub use events::{RouteEvent, RouteEvents};
pub use fair_queue::FairQueue;
pub use filter::{Filter, HeldFilter, Packets};
pub use ip_version::{IpVersion, network_of, octets};
pub use link::{BridgePort, BridgeVlans, Carrier, Link, LinkKind, Multicast, NfCall};
pub use link_change::LinkChange;
pub use mac::{InvalidMac, MacAddress};
pub use message::Message;
pub use monitor::{Monitor, Wait};
pub use neighbour::{Forwarding, Neighbour};
pub use netlink_packet_route::link::{IpVlanMode, MacVlanMode};
pub use new_links::{NewKind, NewLink, ProbeLink};
pub use policy::{Policies, PolicyEvents};
pub use port_flag::PortFlag;
pub use qdisc::{Handle, Place, Qdisc, QdiscKind};
pub use removal::run;
pub use request::Request;
pub use route::{NewRoute, Route};
pub use rule::Rule;
pub use saved_address::SavedAddress;
pub use saved_route::SavedRoute;
pub use socket::{Content, Protocol, ReceiveError, Received, Refusal, Reply, Socket};
pub use tun::Tap;
pub use veth::{VethEnd, VethPair};
pub use vlan::{PortVlans, Tagging, VlanCarrier};
