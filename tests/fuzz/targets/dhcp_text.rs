//! Requests to the daemon of dhcp, its records, and libcni's cache.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| dhcp::fuzzing::read_text(input));
