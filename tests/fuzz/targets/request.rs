//! Environment and standard input, up to the plugin's request.

#![no_main]

use std::ffi::OsString;

use cni::Attachment;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((variables, stdin)) = fuzz::split(input) else {
        return;
    };
    let lookup = |name: &str| fuzz::variable(variables, name).map(OsString::from);
    for attachment in cni::fuzzing::read_request(lookup, stdin) {
        expect_tame(&attachment);
    }
});

/// Checks that the names stay in their directory and the owner fits into the kernel's comment.
fn expect_tame(attachment: &Attachment) {
    let names = [
        attachment.network.as_str(),
        attachment.container.as_str(),
        attachment.interface.as_str(),
    ];
    for name in names {
        assert!(!name.is_empty() && name != "." && name != "..");
        assert!(!name.contains(|it: char| it == '/' || it.is_whitespace() || it.is_control()));
    }
    assert!(attachment.interface.as_str().len() < 16);
    assert!(attachment.owner().len() <= 200);
}
