//! What can go wrong, and the one place that gives each failure its code.

use std::path::PathBuf;

use serde::Serialize;

use crate::environment::Verb;
use crate::version::SpecVersion;

/// A failure that has a code of its own in the protocol.
///
/// Anything else that a plugin returns is reported with code 100.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Code 1: the configuration's `cniVersion` is not among the plugin's.
    #[error(
        "cniVersion {requested:?} is not supported; supported are {}",
        SpecVersion::list(supported)
    )]
    IncompatibleVersion {
        /// What the configuration asked for.
        requested: String,
        /// What the plugin speaks.
        supported: &'static [SpecVersion],
    },
    /// Code 1: the verb came into the specification after `version`.
    #[error("{verb} needs cniVersion {since} or later, the configuration says {version}")]
    VerbTooNew {
        /// The verb that was called.
        verb: Verb,
        /// The configuration's version.
        version: SpecVersion,
        /// The first version with that verb.
        since: SpecVersion,
    },
    /// Code 2: a key that is understood, with a value that cannot be done.
    #[error("{key}: {value} is not supported: {reason}")]
    UnsupportedField {
        /// The key, with its parents: `ipam.ranges`.
        key: String,
        /// The value as it was written.
        value: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// Code 4: environment variables are missing or malformed.
    #[error("{problem}")]
    Environment {
        /// Names the variables.
        problem: String,
    },
    /// Code 5: the request or the result could not be read or written.
    #[error("{action}")]
    Io {
        /// What was being done, such as `read stdin`.
        action: String,
        /// Why it did not work.
        #[source]
        source: std::io::Error,
    },
    /// Code 6: standard input is not the JSON that it should be.
    #[error("decode {what}: {reason}")]
    Decode {
        /// Which document.
        what: String,
        /// Where and why.
        reason: String,
    },
    /// Code 7: a key has a value that makes no sense.
    #[error("{key}: {reason}")]
    InvalidConfig {
        /// The key, with its parents.
        key: String,
        /// The value, what is wrong with it, and what would be right.
        reason: String,
    },
    /// Code 8: the sandbox is the namespace that the plugin itself runs in.
    #[error(
        "CNI_NETNS {path:?} is the plugin's own network namespace; set CNI_NETNS_OVERRIDE=1 if that is meant"
    )]
    OwnNamespace {
        /// The path that was given.
        path: PathBuf,
    },
    /// Code 11: it may work a little later.
    #[error("{reason}; try again later")]
    TryAgain {
        /// What stands in the way.
        reason: String,
    },
    /// Code 50: ADD would fail for every container.
    #[error("not available: {reason}")]
    Unavailable {
        /// Why, and what to do.
        reason: String,
    },
    /// The delegate's own code: passed through as the delegate said it.
    #[error("{plugin}: {}", object.msg)]
    Delegate {
        /// The delegate's file name.
        plugin: String,
        /// What it printed.
        object: ErrorObject,
        /// Where the object comes from.
        ending: Ending,
    },
}

/// How a delegate that failed has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It printed an error object.
    Answered,
    /// It printed none: it crashed, or was killed.
    Silent,
}

impl Error {
    /// A delegate printed that it failed; it did not crash, and was not killed.
    pub fn is_answer(&self) -> bool {
        let ending = match self {
            Self::Delegate { ending, .. } => *ending,
            _ => Ending::Silent,
        };
        ending == Ending::Answered
    }

    /// The code of this failure in the specification's error object.
    pub fn code(&self) -> u32 {
        match self {
            Self::IncompatibleVersion { .. } | Self::VerbTooNew { .. } => 1,
            Self::UnsupportedField { .. } => 2,
            Self::Environment { .. } => 4,
            Self::Io { .. } => 5,
            Self::Decode { .. } => 6,
            Self::InvalidConfig { .. } => 7,
            Self::OwnNamespace { .. } => 8,
            Self::TryAgain { .. } => 11,
            Self::Unavailable { .. } => 50,
            Self::Delegate { object, .. } => object.code,
        }
    }

    /// The sandbox that `CNI_NETNS` names cannot be entered.
    pub fn sandbox(reason: impl Into<anyhow::Error>) -> Self {
        Self::Environment {
            problem: format!("CNI_NETNS: {:#}", reason.into()),
        }
    }

    /// What stands in the way now may be gone a little later.
    pub fn try_again(reason: impl Into<anyhow::Error>) -> Self {
        Self::TryAgain {
            reason: format!("{:#}", reason.into()),
        }
    }

    /// A key whose value makes no sense, and why.
    pub fn invalid(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::InvalidConfig {
            key: key.into(),
            reason: reason.into(),
        }
    }
}

/// The code of failures that the specification has no code for.
pub(crate) const UNSPECIFIED: u32 = 100;

/// The error object of the specification, section "Error".
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorObject {
    /// The version that the request was made in.
    pub cni_version: String,
    /// 1 to 99 are the specification's, 100 and above the plugin's.
    pub code: u32,
    /// What was being done.
    pub msg: String,
    /// The chain of causes, outermost first.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl ErrorObject {
    /// Its code says more than that something failed: a plugin chose it.
    pub fn is_specific(&self) -> bool {
        self.code != UNSPECIFIED
    }

    /// Puts `error` in the form that runtimes read, in the version of the request.
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

/// One outcome of several things of which none keeps the others from being done: every failure, and
/// the code of the only one.
///
/// # Errors
/// Any of them failed.
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
    fn code_is_found_below_any_context_and_the_chain_is_told_once() {
        let error = Err::<(), _>(Error::invalid("mtu", "70000 is over 65535"))
            .context("plan")
            .unwrap_err();
        let object = ErrorObject::new(&error, SpecVersion::V1_0_0);
        assert_eq!((object.code, object.msg.as_str()), (7, "plan"));
        assert_eq!(object.details, "mtu: 70000 is over 65535");
    }

    #[test]
    fn every_failure_is_told_and_the_code_of_the_only_one() {
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
            ending: Ending::Answered,
        });
        let printed = ErrorObject::new(&error, SpecVersion::V1_0_0);
        assert_eq!(
            (printed.code, printed.msg.as_str()),
            (107, "host-local: no lease")
        );
        assert_eq!(printed.details, "range is full");
    }
}
