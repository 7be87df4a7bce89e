//! The file of pod CIDRs or subnet.env.

#![no_main]
#![allow(
    dead_code,
    unused_imports,
    reason = "a target uses of the modules what reads"
)]

#[path = "../../../crates/host-local/src/pod_cidr.rs"]
mod pod_cidr;
#[path = "../../../crates/host-local/src/read.rs"]
mod read;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for network in pod_cidr::parse(text).unwrap_or_default() {
        assert_eq!(network.ip(), network.network());
    }
});
