//! CNI plugin `host-local`: leases addresses from ranges, remembered in files.

use std::process::ExitCode;

mod add;
mod allocate;
mod blocks;
mod check;
mod config;
mod del;
mod directory;
mod gc;
mod index;
mod lease;
mod lock;
mod plugin;
mod pod_cidr;
mod range;
mod rebuild;
mod request;
mod resolv_conf;
mod rest;
mod scratch;
mod status;
mod storage;
mod store;
mod vacancy;

fn main() -> ExitCode {
    cni::run(&plugin::HostLocal)
}
