//! Limits on open connections, so that silent or slow clients do not delay a probe of `/healthz`.
//!
//! A scrape waits for one of [`MOST_SCRAPES`] places, and keeps it until its answer is written. If
//! more than [`MOST_WAITING`] connections have no place, the server closes the oldest of them. A
//! probe needs no place: it sends its request at once and gets an answer of one packet, so it ends
//! before [`MOST_WAITING`] other clients connect.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use axum::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

/// The places, which permit scrapes of `/metrics`, and the connections that compete for them.
#[derive(Debug)]
pub(super) struct Places {
    scrapes: Arc<Semaphore>,
    /// Connections, oldest first. Those that have a place or have ended stay until [`Self::admit`]
    /// finds more than [`MOST_WAITING`] connections.
    open: VecDeque<(Client, AbortHandle)>,
}

/// A client's connection, and whether it has a [`Place`], the permission for a scrape.
#[derive(Debug, Clone)]
pub(super) struct Client {
    scrapes: Arc<Semaphore>,
    has_place: Arc<AtomicBool>,
}

/// A place: the permission for one scrape. At most [`MOST_SCRAPES`] exist at a time. Dropping one
/// lets the next scrape start.
pub(super) type Place = Option<OwnedSemaphorePermit>;

impl Default for Places {
    fn default() -> Self {
        Self {
            scrapes: Arc::new(Semaphore::new(MOST_SCRAPES)),
            open: VecDeque::new(),
        }
    }
}

impl Places {
    /// Returns the [`Client`] of a new connection, which has no place yet. The caller passes it to
    /// [`Self::admit`].
    pub fn client(&self) -> Client {
        Client {
            scrapes: Arc::clone(&self.scrapes),
            has_place: Arc::default(),
        }
    }

    /// Adds a connection and the task that serves it. If more than [`MOST_WAITING`] connections
    /// have no place, closes the oldest of them.
    pub fn admit(&mut self, client: Client, task: AbortHandle) {
        self.open.push_back((client, task));
        if self.open.len() <= MOST_WAITING {
            return;
        }
        self.open
            .retain(|(client, task)| !client.has_place.load(Relaxed) && !task.is_finished());
        if self.open.len() > MOST_WAITING
            && let Some((_, oldest)) = self.open.pop_front()
        {
            oldest.abort();
        }
    }
}

impl Client {
    /// Waits for a place and returns it. Meanwhile, [`Places::admit`] may close the connection.
    pub async fn place(&self) -> Place {
        let place = Arc::clone(&self.scrapes).acquire_owned().await;
        self.has_place.store(true, Relaxed);
        // Waiting fails only if the semaphore is closed, and no code closes it.
        place.ok()
    }
}

/// Returns `text` as bytes that own this place. So the place becomes free when the text is written
/// or the connection is closed.
pub(super) fn keep(text: Bytes, place: Place) -> Bytes {
    Bytes::from_owner(Kept {
        text,
        _place: place,
    })
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
