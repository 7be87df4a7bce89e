//! Configuration of portmap and values derived from it.

#![no_main]
#![allow(
    dead_code,
    unused_imports,
    reason = "a target uses of the modules what reads"
)]

#[path = "../../../crates/portmap/src/add.rs"]
mod add;
#[path = "../../../crates/portmap/src/check.rs"]
mod check;
#[path = "../../../crates/portmap/src/conditions.rs"]
mod conditions;
#[path = "../../../crates/portmap/src/config.rs"]
mod config;
#[path = "../../../crates/portmap/src/decision.rs"]
mod decision;
#[path = "../../../crates/portmap/src/del.rs"]
mod del;
#[path = "../../../crates/portmap/src/element.rs"]
mod element;
#[path = "../../../crates/portmap/src/firewall.rs"]
mod firewall;
#[path = "../../../crates/portmap/src/gc.rs"]
mod gc;
#[path = "../../../crates/portmap/src/holder.rs"]
mod holder;
#[path = "../../../crates/portmap/src/installation.rs"]
mod installation;
#[path = "../../../crates/portmap/src/localnet.rs"]
mod localnet;
#[path = "../../../crates/portmap/src/names.rs"]
mod names;
#[path = "../../../crates/portmap/src/plan.rs"]
mod plan;
#[path = "../../../crates/portmap/src/raw.rs"]
mod raw;
#[path = "../../../crates/portmap/src/record.rs"]
mod record;
#[path = "../../../crates/portmap/src/reload.rs"]
mod reload;
#[path = "../../../crates/portmap/src/standby.rs"]
mod standby;
#[path = "../../../crates/portmap/src/status.rs"]
mod status;
#[path = "../../../crates/portmap/src/succession.rs"]
mod succession;
#[path = "../../../crates/portmap/src/table.rs"]
mod table;
#[path = "../../../crates/portmap/src/unrecorded.rs"]
mod unrecorded;
#[path = "../../../crates/portmap/src/wait.rs"]
mod wait;

use libfuzzer_sys::fuzz_target;

use config::Config;

fuzz_target!(|input: &[u8]| {
    let Some(request) = fuzz::add_request(input) else {
        return;
    };
    let Ok(config) = Config::parse(&request.network) else {
        return;
    };
    for mapping in &config.mappings {
        mapping.to_string();
    }
});
