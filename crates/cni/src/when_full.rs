//! What STATUS says of something that is used up.

use serde::Deserialize;

use crate::error::Error;
use crate::stderr::note;

/// The key `statusWhenFull`: "warn" or "fail".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// A line on standard error: where STATUS fails the node turns `NotReady`, and the pods
    /// that run there are evicted for the sake of those that could not be started.
    #[default]
    Warn,
    /// Code 50.
    Fail,
}

impl WhenFull {
    /// Says what is used up.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with `reason`, where that is what was chosen.
    pub fn report(self, reason: String) -> Result<(), Error> {
        match self {
            Self::Warn => {
                note(reason);
                Ok(())
            }
            Self::Fail => Err(Error::Unavailable { reason }),
        }
    }
}
