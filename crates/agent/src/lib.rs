//! A daemon that completes what plugins cannot do, because they live for milliseconds: it offers
//! the node's bandwidth to the kubelet as devices, removes what dead sandboxes left, restores rules
//! and serves metrics.
//!
//! No verb needs the agent. Each part of the agent runs only if its section is in the configuration
//! file, and a part whose peer fails does not end the others.

mod capabilities;
mod cli;
mod config;
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
mod shared;
mod unix_socket;
mod uplink;

pub use cli::{command, run};
