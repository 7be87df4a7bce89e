//! The state of the agent's parts, which `/healthz` shows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cni::note;

/// The state of all parts. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health(Arc<Mutex<BTreeMap<&'static str, Option<String>>>>);

impl Health {
    /// Sets the state of a part: `None` if it works, or the reason why not. A change is noted on
    /// standard error, so a failure that lasts gives one line.
    pub fn set(&self, part: &'static str, failure: Option<String>) {
        // The lock ends here: a full standard error must not block other parts.
        let before = self.parts().insert(part, failure.clone());
        if before.as_ref() == Some(&failure) {
            return;
        }
        match failure {
            Some(reason) => note(format_args!("{part}: {reason}")),
            None if before.is_some() => note(format_args!("{part}: works again")),
            None => {}
        }
    }

    /// Returns the failing parts, each with its reason.
    pub fn failures(&self) -> Vec<(&'static str, String)> {
        let parts = self.parts();
        let failing = parts
            .iter()
            .filter_map(|(part, it)| Some((*part, it.clone()?)));
        failing.collect()
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<&'static str, Option<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
