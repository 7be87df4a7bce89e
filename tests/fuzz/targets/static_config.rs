//! Configuration of static, and the result of its ADD.

#![no_main]

use cni::AddResult;
use libfuzzer_sys::fuzz_target;
use static_ipam::Config;

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
    let result = AddResult {
        ips: config.ips,
        routes: config.routes,
        dns: config.dns,
        ..AddResult::default()
    };
    let version = request.network.version;
    let printed = result.to_json(version);
    cni::result::read(printed, version, "result").expect("a result that callers can read");
});
