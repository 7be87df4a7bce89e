//! The state of the agent's parts, which `/healthz` shows.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cni::note;
use tokio::time::timeout;

/// State of each part of the agent: `None` if the part works, otherwise the reason why it does not.
/// Clones share the states.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health(Arc<Mutex<BTreeMap<&'static str, Option<String>>>>);

impl Health {
    /// Sets the state of a part: `None` if the part works, otherwise the reason why it does not.
    /// Writes a change to standard error, so a failure that lasts causes only one line.
    pub fn set(&self, part: &'static str, failure: Option<String>) {
        // This statement also releases the lock. If writing to standard error then blocks, no other
        // part waits for the lock.
        let before = self.parts().insert(part, failure.clone());
        if before.as_ref() == Some(&failure) {
            return;
        }
        match failure {
            Some(reason) => note!("{part}: {reason}"),
            None if before.is_some() => note!("{part}: works again"),
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

/// Waits for `work` and returns its value. If `work` takes longer than `limit`, calls `late` and
/// then waits on.
pub(crate) async fn watched<T>(
    work: impl Future<Output = T>,
    limit: Duration,
    late: impl FnOnce(),
) -> T {
    let mut work = pin!(work);
    if let Ok(done) = timeout(limit, work.as_mut()).await {
        return done;
    }
    late();
    work.await
}
