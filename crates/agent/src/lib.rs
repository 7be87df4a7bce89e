//! A daemon for the work that plugins cannot do, because a plugin runs only for milliseconds. The
//! daemon offers the node's bandwidth to the kubelet as devices, removes what dead sandboxes left,
//! restores rules, reports changes of uplinks and serves metrics.
//!
//! Plugins work without the agent. Each part of the agent runs only if its section is in the
//! configuration file. If a service such as the kubelet or a container runtime fails, the parts
//! that need it wait for it, and the other parts continue.

mod capabilities;
mod cli;
mod cluster;
mod config;
mod defaults;
mod devices;
mod ending;
mod events;
mod gauges;
mod gc;
mod grpc;
mod health;
mod http;
mod log;
mod parts;
mod repair;
mod retry;
mod shared;
mod unix_socket;
mod uplink;
mod watch;

pub use cli::{command, run};
