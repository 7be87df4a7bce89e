//! The state of the agent's parts, which `/healthz` shows.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cni::note;
use parking_lot::Mutex;
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
        let before = self.0.lock().insert(part, failure.clone());
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
        let parts = self.0.lock();
        let parts = parts.iter();
        let failing = parts.filter_map(|(part, it)| Some((*part, it.clone()?)));
        failing.collect()
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
