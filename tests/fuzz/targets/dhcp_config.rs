//! Configuration of dhcp, and `CNI_ARGS`.

#![no_main]

use dhcp::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some(request) = fuzz::add_request(input) else {
        return;
    };
    let Ok(args) = request.args() else {
        return;
    };
    let Ok(config) = Config::parse(&request.network, &args) else {
        return;
    };
    let options = config.options;
    assert!(options.provided.iter().all(|(_, value)| value.len() < 256));
});
