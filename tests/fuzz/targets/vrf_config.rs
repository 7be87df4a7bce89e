//! Configuration of vrf, and the record that its DEL reads.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vrf::{Config, Record};

fuzz_target!(|input: &[u8]| {
    let Some(request) = fuzz::add_request(input) else {
        return;
    };
    if let Ok(config) = Config::parse(&request.network) {
        assert!((1..=15).contains(&config.name.as_str().len()));
        assert_ne!(config.table, Some(0));
    }
    if let Some((_, record)) = fuzz::split(input) {
        serde_json::from_slice::<Record>(record).ok();
    }
});
