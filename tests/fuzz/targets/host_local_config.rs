//! Configuration of host-local and values derived from it.

#![no_main]

use host_local::{Config, Storage, assign, requested};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some(request) = fuzz::add_request(input) else {
        return;
    };
    Storage::of(&request.network).ok();
    let Ok(config) = Config::parse(&request.network) else {
        return;
    };
    let Ok(asked) = requested(&request) else {
        return;
    };
    let assigned = assign(&config.sets, &asked);
    if let Ok(addresses) = assigned {
        for (set, address) in config.sets.iter().zip(addresses) {
            assert!(address.is_none_or(|it| set.range_of(it).is_some()));
        }
    }
});
