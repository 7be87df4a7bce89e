//! Limits on open connections.
//!
//! A client may connect and send nothing, or read its answer slowly. So a scrape needs one of
//! [`MOST_SCRAPES`] places until its text is written. A connection without a place may be closed:
//! if there are more than [`MOST_WAITING`], the oldest one makes room for a new one. A probe of
//! `/healthz` sends its request at once and gets an answer of one packet, so it is done before
//! enough other clients connect.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use axum::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

/// All open connections.
#[derive(Debug)]
pub(super) struct Places {
    scrapes: Arc<Semaphore>,
    /// Connections, oldest first. [`Self::admit`] may close those without a place, and forgets the
    /// others.
    open: VecDeque<(Visitor, AbortHandle)>,
}

/// A connection.
#[derive(Debug, Clone)]
pub(super) struct Visitor {
    scrapes: Arc<Semaphore>,
    has_place: Arc<AtomicBool>,
}

/// A place for a scrape. The place is free again when this value is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            scrapes: Arc::new(Semaphore::new(MOST_SCRAPES)),
            open: VecDeque::new(),
        }
    }
}

impl Places {
    /// Returns a new connection.
    pub fn visitor(&self) -> Visitor {
        Visitor {
            scrapes: Arc::clone(&self.scrapes),
            has_place: Arc::default(),
        }
    }

    /// Adds a connection and the task that serves it. Closes the oldest one without a place if
    /// there are too many.
    pub fn admit(&mut self, visitor: Visitor, task: AbortHandle) {
        self.open.push_back((visitor, task));
        if self.open.len() <= MOST_WAITING {
            return;
        }
        self.open
            .retain(|(visitor, task)| !visitor.has_place.load(Relaxed) && !task.is_finished());
        if self.open.len() > MOST_WAITING
            && let Some((_, oldest)) = self.open.pop_front()
        {
            oldest.abort();
        }
    }
}

impl Visitor {
    /// Waits for a place. The connection may be closed meanwhile.
    pub async fn place(&self) -> Place {
        let place = Arc::clone(&self.scrapes).acquire_owned().await;
        self.has_place.store(true, Relaxed);
        // No code closes the semaphore.
        Place {
            _permit: place.ok(),
        }
    }
}

impl Place {
    /// Returns the text, which keeps the place until it is written or the connection is closed.
    pub fn keep(self, text: Bytes) -> Bytes {
        Bytes::from_owner(Kept { text, _place: self })
    }
}

struct Kept {
    text: Bytes,
    _place: Place,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// Maximum number of scrapes at a time. Further scrapes wait.
const MOST_SCRAPES: usize = 32;

/// Maximum number of connections without a place. Each has at most two buffers of
/// [`super::LARGEST_HEADERS`].
const MOST_WAITING: usize = 256;
