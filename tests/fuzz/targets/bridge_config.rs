//! Configuration of bridge and values derived from it.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| fuzz::read_topology::<bridge::Config>(input));
