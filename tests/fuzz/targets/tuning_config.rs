//! Configuration of tuning, and the sysctls that it names.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tuning::{Config, Settings};

fuzz_target!(|input: &[u8]| {
    let Some(request) = fuzz::add_request(input) else {
        return;
    };
    let Ok(args) = request.args() else {
        return;
    };
    if let Ok(config) = Config::parse(&request.network, &args) {
        assert!(config.data_dir.is_absolute());
        for name in config.sysctls.keys() {
            let key = name.sysctl(&request.attachment.interface).key();
            assert!(key.starts_with("net.") && !key.contains(".."), "{key}");
        }
    }
    // The record of former settings has other keys, too.
    if let Some((_, record)) = fuzz::split(input) {
        serde_json::from_slice::<Settings>(record).ok();
    }
});
