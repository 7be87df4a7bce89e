//! Configuration of host-local and values derived from it.

#![no_main]
#![allow(
    dead_code,
    unused_imports,
    reason = "a target uses of the modules what reads"
)]

include!("../src/host_local.rs");

use libfuzzer_sys::fuzz_target;

use config::Config;

fuzz_target!(|input: &[u8]| {
    let Some(request) = fuzz::add_request(input) else {
        return;
    };
    storage::Storage::of(&request.network).ok();
    let Ok(config) = Config::parse(&request.network) else {
        return;
    };
    let Ok(asked) = request::requested(&request) else {
        return;
    };
    let assigned = request::assign(&config.sets, &asked);
    if let Ok(addresses) = assigned {
        for (set, address) in config.sets.iter().zip(addresses) {
            assert!(address.is_none_or(|it| set.range_of(it).is_some()));
        }
    }
});
