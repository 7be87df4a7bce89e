//! Configuration of host-device: which device it means.

#![no_main]

use host_device::{Config, Selector};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some(request) = fuzz::add_request(input) else {
        return;
    };
    if let Ok(config) = Config::parse(&request.network)
        && let Selector::Directory(path) = config.device
    {
        let path = path.to_string_lossy();
        assert!(
            path.starts_with("/sys/") && !path.contains("/../"),
            "{path}"
        );
    }
});
