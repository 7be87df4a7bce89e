//! Errors and their codes. [`Error::code`] returns the code of the specification for each error.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{SpecVersion, Verb};

/// A failure with a code of its own in the protocol.
///
/// Every other error that a plugin returns is reported with code 100.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Code 1: the plugin does not support the configuration's `cniVersion`.
    #[error(
        "cniVersion {requested:?} is not supported; supported are {}",
        SpecVersion::list(supported)
    )]
    IncompatibleVersion {
        /// The configuration's version.
        requested: String,
        /// The plugin's versions.
        supported: &'static [SpecVersion],
    },
    /// Code 1: a later version than `version` introduced the verb.
    #[error(
        "{verb} needs cniVersion {} or later, the configuration says {version}",
        verb.since()
    )]
    VerbTooNew {
        /// The requested verb.
        verb: Verb,
        /// The configuration's version.
        version: SpecVersion,
    },
    /// Code 2: the value of a known key is not supported.
    #[error("{key}: {value} is not supported: {reason}")]
    UnsupportedField {
        /// The key, with its parents: `ipam.ranges`.
        key: String,
        /// The value as it was written.
        value: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// Code 4: environment variables are missing or malformed. The text names them.
    #[error("{0}")]
    Environment(String),
    /// Code 5: an I/O operation failed, such as reading the request or starting a delegate.
    #[error("{action}")]
    Io {
        /// The attempted action, such as `read stdin`.
        action: String,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// Code 6: standard input or the result of a delegate is not the expected JSON.
    #[error("decode {what}: {reason}")]
    Decode {
        /// The document, such as `network configuration` or `result of host-local`.
        what: String,
        /// The reason, with the position in the document or the key.
        reason: String,
    },
    /// Code 7: the value of a key is invalid.
    #[error("{key}: {reason}")]
    InvalidConfig {
        /// The key, with its parents.
        key: String,
        /// The value, the problem, and what would be valid.
        reason: String,
    },
    /// Code 8: the sandbox is the plugin's own namespace.
    #[error(
        "CNI_NETNS {0:?} is the plugin's own network namespace; set CNI_NETNS_OVERRIDE=1 if that is meant"
    )]
    OwnNamespace(PathBuf),
    /// Code 11: a later attempt may succeed. The text names the temporary obstacle.
    #[error("{0}; try again later")]
    TryAgain(String),
    /// Code 50: ADD would fail for every container. The text contains the reason, and what to do.
    #[error("not available: {0}")]
    Unavailable(String),
    /// The code in `object`: a delegate failed. A delegate is a plugin that this process called,
    /// such as an IPAM plugin.
    #[error("{plugin}: {}", object.msg)]
    Delegate {
        /// The delegate's file name.
        plugin: String,
        /// The delegate's error object.
        object: ErrorObject,
        /// Whether the delegate printed `object`. If false, the delegate ended without an error
        /// object, for example by a crash, and this process created `object`.
        is_answer: bool,
    },
}

impl Error {
    /// Returns whether a delegate printed this error as an error object. Returns false if a
    /// delegate failed without an error object, and for all other errors.
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Delegate { is_answer, .. } if *is_answer)
    }

    /// Returns whether a file, such as the executable of a program, does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Returns the code of this failure in the specification's error object.
    pub fn code(&self) -> u32 {
        match self {
            Self::IncompatibleVersion { .. } | Self::VerbTooNew { .. } => 1,
            Self::UnsupportedField { .. } => 2,
            Self::Environment(_) => 4,
            Self::Io { .. } => 5,
            Self::Decode { .. } => 6,
            Self::InvalidConfig { .. } => 7,
            Self::OwnNamespace(_) => 8,
            Self::TryAgain(_) => 11,
            Self::Unavailable(_) => 50,
            Self::Delegate { object, .. } => object.code,
        }
    }

    /// Returns the error (code 4) for a sandbox in `CNI_NETNS` that cannot be entered.
    pub fn sandbox(reason: impl Into<anyhow::Error>) -> Self {
        Self::Environment(format!("CNI_NETNS: {:#}", reason.into()))
    }

    /// Returns the error (code 50) for a host on which every ADD would fail for this reason.
    pub fn unavailable(reason: impl Into<anyhow::Error>) -> Self {
        Self::Unavailable(format!("{:#}", reason.into()))
    }

    /// Returns a function that converts an [`io::Error`] to [`Error::Io`]. `action` names the
    /// failed action, such as `read stdin`.
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        |source| Self::Io { action, source }
    }

    /// Returns the error (code 7) for `key` with an invalid value. `reason` is the rest of the
    /// message: the problem, and what would be valid.
    pub fn invalid(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::InvalidConfig {
            key: key.into(),
            reason: reason.into(),
        }
    }
}

/// Code of failures without a code in the specification.
pub(crate) const UNSPECIFIED: u32 = 100;

/// The error object that a failed plugin prints: section "Error" of the specification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorObject {
    /// The version of the request, or the newest one if the request is invalid; empty in the object
    /// of a delegate.
    #[serde(skip_deserializing)]
    pub cni_version: String,
    /// The error's code. The specification reserves 0 to 99; a plugin defines 100 and above.
    pub code: u32,
    /// The outermost message of the failure, such as the attempted action.
    #[serde(default)]
    pub msg: String,
    /// The causes of the failure, joined by ": ", outermost first.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl ErrorObject {
    /// Returns whether the code identifies the kind of failure. Returns false for 100, the code of
    /// all failures without a code of their own.
    pub fn is_specific(&self) -> bool {
        self.code != UNSPECIFIED
    }

    /// Converts `error` to the error object that runtimes read. `version` is the version of the
    /// request.
    pub fn new(error: &anyhow::Error, version: SpecVersion) -> Self {
        let known = error
            .chain()
            .find_map(|cause| cause.downcast_ref::<Error>());
        let mut causes: Vec<_> = error.chain().map(ToString::to_string).collect();
        if let Some(Error::Delegate { object, .. }) = known
            && !object.details.is_empty()
        {
            causes.push(object.details.clone());
        }
        let msg = causes.remove(0);
        Self {
            cni_version: version.to_string(),
            code: known.map_or(UNSPECIFIED, Error::code),
            msg,
            details: causes.join(": "),
        }
    }
}

/// Combines the outcomes of independent steps. Returns all failures as one error. A single failure
/// keeps its code; several failures get code 100.
///
/// # Errors
/// At least one step failed.
pub fn all(outcomes: impl IntoIterator<Item = anyhow::Result<()>>) -> anyhow::Result<()> {
    let mut failures: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    if failures.len() < 2 {
        return failures.pop().map_or(Ok(()), Err);
    }
    let texts: Vec<_> = failures.iter().map(|it| format!("{it:#}")).collect();
    Err(anyhow::Error::msg(texts.join("; ")))
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn code_is_found_below_any_context_and_the_chain_is_printed_once() {
        let error = Err::<(), _>(Error::invalid("mtu", "70000 is over 65535"))
            .context("plan")
            .unwrap_err();
        let object = ErrorObject::new(&error, SpecVersion::V1_0_0);
        assert_eq!((object.code, object.msg.as_str()), (7, "plan"));
        assert_eq!(object.details, "mtu: 70000 is over 65535");
    }

    #[test]
    fn every_failure_is_reported_and_the_code_of_the_only_one() {
        let failed = || Err(Error::invalid("mtu", "too large").into());
        assert!(all([Ok(()), Ok(())]).is_ok());
        let one = ErrorObject::new(&all([Ok(()), failed()]).unwrap_err(), SpecVersion::V1_0_0);
        assert_eq!(one.code, 7);
        let both = all([failed(), Ok(()), failed()]).unwrap_err().to_string();
        assert_eq!(both, "mtu: too large; mtu: too large");
    }

    #[test]
    fn code_and_details_of_a_delegate_pass_through() {
        let object = ErrorObject {
            cni_version: "1.0.0".into(),
            code: 107,
            msg: "no lease".into(),
            details: "range is full".into(),
        };
        let error = anyhow::Error::from(Error::Delegate {
            plugin: "host-local".into(),
            object,
            is_answer: true,
        });
        let printed = ErrorObject::new(&error, SpecVersion::V1_0_0);
        assert_eq!(
            (printed.code, printed.msg.as_str()),
            (107, "host-local: no lease")
        );
        assert_eq!(printed.details, "range is full");
    }
}
