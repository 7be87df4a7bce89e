//! The text of all metrics. Only one thread at a time makes a new text.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::body::Bytes;
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout};

/// The text of all metrics. Reading the node blocks, so a thread outside the event loop makes the
/// text.
pub(super) struct Text {
    make: Arc<dyn Fn() -> anyhow::Result<String> + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The last text, with the time when it was made.
    last: Option<(Instant, Bytes)>,
    /// The task that makes a new text, and returns it with the time when it was made. If the client
    /// that started the task gives up, the next client waits for the same task.
    running: Option<JoinHandle<anyhow::Result<(Instant, Bytes)>>>,
}

impl State {
    /// Returns the last text if it is younger than [`FRESH`]; `None` if a new text is needed. If a
    /// client gave up before its text was ready, the next call that finds it ready returns it up to
    /// the age [`LONGEST`].
    async fn fresh(&mut self) -> Option<Bytes> {
        let mut oldest = FRESH;
        if let Some(ended) = self.running.take_if(|task| task.is_finished())
            && let Ok(Ok(made)) = ended.await
        {
            self.last = Some(made);
            oldest = LONGEST;
        }
        let (time, text) = self.last.as_ref()?;
        (time.elapsed() < oldest).then(|| text.clone())
    }
}

impl Text {
    /// Stores the function that reads the node and makes the text. The first call of
    /// [`Self::current`] calls it.
    pub fn of(make: impl Fn() -> anyhow::Result<String> + Send + Sync + 'static) -> Self {
        Self {
            make: Arc::new(make),
            state: Mutex::default(),
        }
    }

    /// Returns the last text, or a new one if the last is older than [`FRESH`]. If an earlier
    /// client gave up before its text was ready, that text may be as old as [`LONGEST`].
    ///
    /// # Errors
    /// Reading the node fails or takes longer than [`LONGEST`].
    pub async fn current(&self) -> anyhow::Result<Bytes> {
        let text = timeout(LONGEST, self.read()).await;
        text.context("the metrics are still being read")?
    }

    async fn read(&self) -> anyhow::Result<Bytes> {
        // Clients that arrive while a text is being made wait here, and get the same text.
        let mut state = self.state.lock().await;
        if let Some(text) = state.fresh().await {
            return Ok(text);
        }
        let running = state.running.get_or_insert_with(|| {
            let make = Arc::clone(&self.make);
            spawn_blocking(move || {
                let text = make()?;
                Ok((Instant::now(), text.into()))
            })
        });
        let read = running.await;
        state.running = None;
        let (time, text) = read.context("read the metrics")??;
        state.last = Some((time, text.clone()));
        Ok(text)
    }
}

/// The time for which further scrapes get the same text.
pub(super) const FRESH: Duration = Duration::from_secs(2);

/// Maximum time that a client waits for a text.
const LONGEST: Duration = Duration::from_secs(8);

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what a client gets if a task, whose own client gave up, made its text `age` ago.
    async fn left_over(age: Duration) -> Option<Bytes> {
        let time = Instant::now().checked_sub(age).unwrap();
        let task = spawn_blocking(move || Ok((time, Bytes::from("text"))));
        while !task.is_finished() {
            tokio::task::yield_now().await;
        }
        let mut state = State {
            last: None,
            running: Some(task),
        };
        let text = state.fresh().await;
        assert!(state.running.is_none());
        text
    }

    #[test]
    fn a_text_that_its_client_did_not_wait_for_is_served_for_some_seconds() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            assert_eq!(left_over(FRESH).await.as_deref(), Some(&b"text"[..]));
            assert_eq!(left_over(LONGEST).await, None);
        });
    }
}
