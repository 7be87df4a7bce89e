//! The kernel's replies about nf_tables.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| nft::fuzzing::read_reply(input));
