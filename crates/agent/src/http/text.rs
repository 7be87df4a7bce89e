//! The text of all metrics. Only one thread at a time makes a new text.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::body::Bytes;
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout};

use super::node::NodeMetrics;

/// The text of all metrics. Reading the node blocks, so another thread makes the text.
#[derive(Debug)]
pub(super) struct Text {
    node: Arc<NodeMetrics>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last text, with the time when it was made.
    last: Option<(Instant, Bytes)>,
    /// The running task that makes a new text. If the client that started it gives up, the next
    /// client waits for the same task.
    running: Option<JoinHandle<anyhow::Result<String>>>,
}

impl Text {
    /// Returns the text of these metrics, which is first made when a client asks for it.
    pub fn of(node: NodeMetrics) -> Self {
        Self {
            node: Arc::new(node),
            state: Mutex::default(),
        }
    }

    /// Returns a text that is at most [`FRESH`] old.
    ///
    /// # Errors
    /// The text is not complete within [`LONGEST`].
    pub async fn current(&self) -> anyhow::Result<Bytes> {
        let text = timeout(LONGEST, self.read()).await;
        text.context("the metrics are still being read")?
    }

    async fn read(&self) -> anyhow::Result<Bytes> {
        // Clients that arrive while a text is being made wait here, and get the same text.
        let mut state = self.state.lock().await;
        if let Some((time, text)) = &state.last
            && time.elapsed() < FRESH
        {
            return Ok(text.clone());
        }
        let running = state.running.get_or_insert_with(|| {
            let node = Arc::clone(&self.node);
            spawn_blocking(move || node.text())
        });
        let read = running.await;
        state.running = None;
        let text = Bytes::from(read.context("read the metrics")??);
        state.last = Some((Instant::now(), text.clone()));
        Ok(text)
    }
}

/// The time for which further scrapes get the same text.
pub(super) const FRESH: Duration = Duration::from_secs(2);

/// Maximum time that a client waits for a text.
const LONGEST: Duration = Duration::from_secs(8);
