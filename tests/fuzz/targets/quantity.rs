//! Quantities of Kubernetes.

#![no_main]
#![allow(
    dead_code,
    unused_imports,
    reason = "a target uses of the modules what reads"
)]

#[path = "../../../crates/bandwidth/src/quantity.rs"]
mod quantity;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let value = quantity::parse(text);
    // Longer numbers with leading zeros are refused.
    if let Ok(number) = text.parse::<u64>()
        && text.len() <= 30
    {
        assert_eq!(value, Some(number));
    }
});
