//! Configuration of the plugins whose link lives in the sandbox alone, and the record of a sandbox.

#![no_main]

use attach::Witness;
use attach::single::SandboxLink as _;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some((_, record)) = fuzz::split(input) {
        serde_json::from_slice::<Witness>(record).ok();
    }
    let Some(request) = fuzz::add_request(input) else {
        return;
    };
    let Ok(args) = request.args() else {
        return;
    };
    for parse in [
        macvlan::Macvlan::parse,
        ipvlan::Ipvlan::parse,
        vlan::Vlan::parse,
        dummy::Dummy::parse,
        tap::Tap::parse,
    ] {
        if let Ok(desired) = parse(&request.network, &args) {
            assert!(desired.mtu.is_none_or(|it| it >= 68));
        }
    }
});
