//! Configuration of sbr, and the record that its DEL reads.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sbr::{Config, Record};

fuzz_target!(|input: &[u8]| {
    let Some(request) = fuzz::add_request(input) else {
        return;
    };
    if let Ok(Config::Shared(table)) = Config::parse(&request.network) {
        assert_ne!(table, 0);
    }
    if let Some((_, record)) = fuzz::split(input) {
        serde_json::from_slice::<Record>(record).ok();
    }
});
