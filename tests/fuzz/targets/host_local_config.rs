//! Configuration of host-local and values derived from it.

#![no_main]

use host_local::{Config, Storage, wanted};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some(request) = fuzz::add_request(input) else {
        return;
    };
    Storage::of(&request.network).ok();
    let Ok(config) = Config::parse(&request.network) else {
        return;
    };
    for wanted in wanted(&request, &config.sets).into_iter().flatten() {
        let address = wanted.address;
        assert!(address.is_none_or(|it| wanted.set.range_of(it).is_some()));
    }
});
