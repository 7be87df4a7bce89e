//! Configuration of bandwidth and values derived from it.

#![no_main]
#![allow(
    dead_code,
    unused_imports,
    reason = "a target uses of the modules what reads"
)]

#[path = "../../../crates/bandwidth/src/add.rs"]
mod add;
#[path = "../../../crates/bandwidth/src/backstop.rs"]
mod backstop;
#[path = "../../../crates/bandwidth/src/check.rs"]
mod check;
#[path = "../../../crates/bandwidth/src/config.rs"]
mod config;
#[path = "../../../crates/bandwidth/src/del.rs"]
mod del;
#[path = "../../../crates/bandwidth/src/gc.rs"]
mod gc;
#[path = "../../../crates/bandwidth/src/host_link.rs"]
mod host_link;
#[path = "../../../crates/bandwidth/src/ifb.rs"]
mod ifb;
#[path = "../../../crates/bandwidth/src/plan.rs"]
mod plan;
#[path = "../../../crates/bandwidth/src/policy.rs"]
mod policy;
#[path = "../../../crates/bandwidth/src/quantity.rs"]
mod quantity;
#[path = "../../../crates/bandwidth/src/raw.rs"]
mod raw;
#[path = "../../../crates/bandwidth/src/status.rs"]
mod status;

use libfuzzer_sys::fuzz_target;

use config::Config;

fuzz_target!(|input: &[u8]| {
    let Some(request) = fuzz::add_request(input) else {
        return;
    };
    let Ok(config) = Config::parse(&request.network) else {
        return;
    };
    for mtu in [68, 1500, 65_535] {
        plan::Plan::new(&config, mtu).ok();
    }
});
