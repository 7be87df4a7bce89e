//! The function that the fuzz target `request` calls.

use std::ffi::OsString;

use crate::environment::Environment;
use crate::{AddRequest, Attachment, DelRequest, Document, GcRequest, Network, SpecVersion, Verb};

/// Reads a request as a plugin does: the environment variables by `lookup`, and the configuration
/// from `stdin`. Returns the attachments that the request names; none if the request is rejected.
pub fn read_request(lookup: impl Fn(&str) -> Option<OsString>, stdin: &[u8]) -> Vec<Attachment> {
    let Ok(Some(environment)) = Environment::read(lookup) else {
        return Vec::new();
    };
    let path = environment.path.clone();
    let document = Document::decode(stdin.to_vec());
    let network = document.and_then(|it| Network::parse(it, path, &SpecVersion::ALL));
    let Ok(network) = network else {
        return Vec::new();
    };
    network.ipam_type().ok();
    network.ipam_timeout().ok();
    let named = match environment.verb {
        Verb::Add | Verb::Check | Verb::Reload => {
            AddRequest::parse(environment, network).map(|it| vec![it.attachment])
        }
        Verb::Del => DelRequest::parse(environment, network).map(|it| vec![it.attachment]),
        Verb::Gc => GcRequest::parse(network).map(|it| it.valid),
        Verb::Status | Verb::Version => Ok(Vec::new()),
    };
    named.unwrap_or_default()
}
