//! Quantities of Kubernetes.

#![no_main]

use bandwidth::quantity;
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
