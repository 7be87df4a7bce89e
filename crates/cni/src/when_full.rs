//! What STATUS reports if a resource, such as addresses, is exhausted.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{Error, note};

/// The key `statusWhenFull`: "warn" (the default) or "fail".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(extend("default" = "warn"))]
pub enum WhenFull {
    /// A line on standard error. A failing STATUS would make the node `NotReady`, and Kubernetes
    /// would evict running pods because new ones cannot start.
    #[default]
    Warn,
    /// STATUS fails with code 50.
    Fail,
}

impl WhenFull {
    /// Reports `reason`, which names the exhausted resource. [`Self::Warn`] writes it to standard
    /// error. [`Self::Fail`] returns it as an error.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with `reason` for [`Self::Fail`].
    pub fn report(self, reason: String) -> Result<(), Error> {
        match self {
            Self::Warn => {
                note(reason);
                Ok(())
            }
            Self::Fail => Err(Error::Unavailable(reason)),
        }
    }
}
