//! Configuration of firewall.

#![no_main]

use firewall::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some(request) = fuzz::add_request(input) else {
        return;
    };
    let Ok(config) = Config::parse(&request.network) else {
        return;
    };
    assert!(config.mark.bits().is_power_of_two() && config.admin_chain.len() <= 28);
});
