//! Environment and standard input, up to the plugin's request.

#![no_main]
#![allow(
    dead_code,
    unused_imports,
    reason = "a target uses of the modules what reads"
)]

#[path = "../../../crates/cni/src/args.rs"]
mod args;
#[path = "../../../crates/cni/src/attachment.rs"]
mod attachment;
#[path = "../../../crates/cni/src/delegate.rs"]
mod delegate;
#[path = "../../../crates/cni/src/dispatch.rs"]
mod dispatch;
#[path = "../../../crates/cni/src/environment.rs"]
mod environment;
#[path = "../../../crates/cni/src/error.rs"]
mod error;
#[path = "../../../crates/cni/src/json.rs"]
mod json;
#[path = "../../../crates/cni/src/log/mod.rs"]
mod log;
#[path = "../../../crates/cni/src/network.rs"]
mod network;
#[path = "../../../crates/cni/src/process.rs"]
mod process;
#[path = "../../../crates/cni/src/request.rs"]
mod request;
#[path = "../../../crates/cni/src/result/mod.rs"]
mod result;
#[path = "../../../crates/cni/src/stderr.rs"]
mod stderr;
#[path = "../../../crates/cni/src/undo.rs"]
mod undo;
#[path = "../../../crates/cni/src/version.rs"]
mod version;
#[path = "../../../crates/cni/src/when_full.rs"]
mod when_full;

use args::CniArgs;
use attachment::Attachment;
use error::Error;
use stderr::note;

use std::ffi::OsString;

use libfuzzer_sys::fuzz_target;

use environment::{Environment, Verb};
use network::{Document, Network};
use request::{AddRequest, DelRequest, GcRequest};
use version::SpecVersion;

fuzz_target!(|input: &[u8]| {
    let Some((variables, stdin)) = fuzz::split(input) else {
        return;
    };
    let lookup = |name: &str| fuzz::variable(variables, name).map(OsString::from);
    let Ok(Some(environment)) = Environment::read(lookup) else {
        return;
    };
    let path = environment.path.clone();
    let Ok(document) = Document::decode(stdin.to_vec()) else {
        return;
    };
    let Ok(network) = Network::parse(document, path, &SpecVersion::ALL) else {
        return;
    };
    network.ipam_type().ok();
    network.ipam_timeout().ok();
    match environment.verb {
        Verb::Add | Verb::Check | Verb::Reload => {
            if let Ok(request) = AddRequest::parse(environment, network) {
                expect_tame(&request.attachment);
            }
        }
        Verb::Del => {
            if let Ok(request) = DelRequest::parse(environment, network) {
                expect_tame(&request.attachment);
            }
        }
        Verb::Gc => {
            if let Ok(request) = GcRequest::parse(network) {
                request.valid_attachments().for_each(|it| expect_tame(&it));
            }
        }
        Verb::Status | Verb::Version => {}
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
