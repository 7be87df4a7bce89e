//! CNI plugin `portmap`: forwards host ports to a sandbox.

use std::process::ExitCode;

use detach::Task;

mod add;
mod check;
mod conditions;
mod config;
mod del;
mod firewall;
mod gc;
mod holder;
mod localnet;
mod plan;
mod plugin;
mod record;
mod reload;
mod status;
mod table;

fn main() -> ExitCode {
    match Task::of_this_process() {
        Some(task) => netlink::finish(&task),
        None => cni::run(&plugin::Portmap),
    }
}
