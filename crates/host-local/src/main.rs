//! CNI plugin `host-local`: leases addresses from ranges, remembered in files.

use std::process::ExitCode;

mod add;
mod allocate;
mod check;
mod config;
mod del;
mod gc;
mod lease;
mod plugin;
mod pod_cidr;
mod range;
mod request;
mod resolv_conf;
mod status;
mod store;

fn main() -> ExitCode {
    cni::run(&plugin::HostLocal)
}
