//! Frames from the network, as the daemon of dhcp reads them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some(lease) = dhcp::fuzzing::read_frame(input) {
        assert!(lease.is_confirmed() && lease.renew <= lease.rebind && lease.rebind <= lease.end);
        assert!(lease.address.prefix() <= 32 && !lease.address.ip().is_unspecified());
    }
});
