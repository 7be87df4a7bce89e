//! The kubelet's list of the devices that pods have.

#![no_main]

use bandwidth::checkpoint;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|json: &[u8]| {
    let Ok(devices) = checkpoint::devices(json, "a") else {
        return;
    };
    // Each device needs at least its quotation marks and a comma.
    let count: u64 = devices.values().sum();
    assert!(count * 3 <= json.len() as u64);
});
