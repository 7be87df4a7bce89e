//! The file of pod CIDRs or subnet.env.

#![no_main]

use host_local::pod_cidr;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for network in pod_cidr::parse(text).unwrap_or_default() {
        assert_eq!(network.ip(), network.network());
    }
});
