//! CNI plugin `bridge`: joins a sandbox to a Linux bridge by a veth pair.

use std::process::ExitCode;

use detach::Task;

mod add;
mod check;
mod config;
mod del;
mod firewall;
mod frames;
mod gateway;
mod gc;
mod host;
mod masquerade;
mod mtu;
mod plan;
mod plugin;
mod reload;
mod sandbox;
mod status;
mod vlan;

fn main() -> ExitCode {
    match Task::of_this_process() {
        Some(task) => netlink::finish(&task),
        None => cni::run(&plugin::Bridge),
    }
}
