//! Configuration of ptp and values derived from it.

#![no_main]

use attach::{Addressing, Topology as _, asked_mac, derived_mac};
use libfuzzer_sys::fuzz_target;
use ptp::Config;

fuzz_target!(|input: &[u8]| {
    let Some(request) = fuzz::add_request(input) else {
        return;
    };
    if let Ok(args) = request.args() {
        drop(asked_mac(&request.network, &args));
    }
    let Ok(config) = Config::parse(&request.network) else {
        return;
    };
    // A lease that the IPAM plugin may return.
    if let Some(lease) = lease(&request.network)
        && let Ok(addressing) = Addressing::leased(config.gateway(), &lease, 1500)
    {
        derived_mac(&addressing.ips, &request.attachment);
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
