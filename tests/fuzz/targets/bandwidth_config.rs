//! Configuration of bandwidth and values derived from it.

#![no_main]

use bandwidth::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some(request) = fuzz::add_request(input) else {
        return;
    };
    let Ok(config) = Config::parse(&request.network) else {
        return;
    };
    for limit in config.limits.values() {
        for mtu in [68, 1500, 65_535] {
            limit.limit(mtu).ok();
        }
    }
});
