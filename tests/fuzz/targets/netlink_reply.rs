//! The kernel's netlink replies about links, addresses, routes and qdiscs.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| netlink::fuzzing::read_reply(input));
