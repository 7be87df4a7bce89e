//! Configuration of portmap and values derived from it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use portmap::Config;

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
