//! Configuration of bridge and values derived from it.

#![no_main]
#![allow(
    dead_code,
    unused_imports,
    reason = "a target uses of the modules what reads"
)]

#[path = "../../../crates/bridge/src/add.rs"]
mod add;
#[path = "../../../crates/bridge/src/check.rs"]
mod check;
#[path = "../../../crates/bridge/src/config.rs"]
mod config;
#[path = "../../../crates/bridge/src/del.rs"]
mod del;
#[path = "../../../crates/bridge/src/firewall.rs"]
mod firewall;
#[path = "../../../crates/bridge/src/frames.rs"]
mod frames;
#[path = "../../../crates/bridge/src/gateway.rs"]
mod gateway;
#[path = "../../../crates/bridge/src/gc.rs"]
mod gc;
#[path = "../../../crates/bridge/src/host.rs"]
mod host;
#[path = "../../../crates/bridge/src/host_end.rs"]
mod host_end;
#[path = "../../../crates/bridge/src/made.rs"]
mod made;
#[path = "../../../crates/bridge/src/masquerade.rs"]
mod masquerade;
#[path = "../../../crates/bridge/src/mtu.rs"]
mod mtu;
#[path = "../../../crates/bridge/src/plan.rs"]
mod plan;
#[path = "../../../crates/bridge/src/raw.rs"]
mod raw;
#[path = "../../../crates/bridge/src/reload.rs"]
mod reload;
#[path = "../../../crates/bridge/src/sandbox.rs"]
mod sandbox;
#[path = "../../../crates/bridge/src/status.rs"]
mod status;
#[path = "../../../crates/bridge/src/vlan.rs"]
mod vlan;

use libfuzzer_sys::fuzz_target;

use config::Config;

fuzz_target!(|input: &[u8]| {
    let Some(request) = fuzz::add_request(input) else {
        return;
    };
    let Ok(args) = request.args() else {
        return;
    };
    let Ok(config) = Config::parse(&request.network, &args) else {
        return;
    };
    // A lease that the IPAM plugin may return.
    if let Some(lease) = lease(&request.network)
        && let Ok(plan) = plan::Plan::new(&config, &lease, 1500)
    {
        plan::derived_mac(&plan.ips, &request.attachment);
    }
});

/// Returns `lease` of the configuration, a key of this target only.
fn lease(network: &cni::Network) -> Option<cni::AddResult> {
    #[derive(serde::Deserialize)]
    struct Document {
        lease: serde_json::Value,
    }
    let document: Document = network.quiet_config().ok()?;
    cni::result::read(document.lease, network.version, "lease").ok()
}
