//! Results of delegates and `prevResult` in every version.

#![no_main]

use cni::{SpecVersion, result};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(input) else {
        return;
    };
    const WHAT: &str = "prevResult";
    for version in SpecVersion::ALL.iter().copied() {
        let Ok(read) = result::read(value.clone(), version, WHAT) else {
            continue;
        };
        for other in SpecVersion::ALL.iter().copied() {
            let printed = read.to_json(other);
            let again = result::read(printed.clone(), other, WHAT).expect("is read back");
            assert_eq!(again.to_json(other), printed);
        }
    }
});
