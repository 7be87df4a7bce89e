//! CNI plugin `bandwidth`: limits the rates of a sandbox.

use std::process::ExitCode;

use detach::Task;

mod add;
mod check;
mod config;
mod del;
mod gc;
mod host_link;
mod ifb;
mod plan;
mod plugin;
mod quantity;
mod status;

fn main() -> ExitCode {
    match Task::of_this_process() {
        Some(task) => netlink::finish(&task),
        None => cni::run(&plugin::Bandwidth),
    }
}
