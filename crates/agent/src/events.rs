//! Brings events from sockets that block to the event loop.

use std::thread;

use tokio::sync::mpsc::{Receiver, channel};

/// Calls `hear` again and again on a thread of its own, and returns the receiver of its values. If
/// the receiver lags behind, the thread waits, and the kernel drops events of the socket, which
/// `hear` reports. The thread ends after an error.
pub(crate) fn events<T: Send + 'static>(
    hear: impl Fn() -> anyhow::Result<T> + Send + 'static,
) -> Receiver<anyhow::Result<T>> {
    let (sender, receiver) = channel(MOST_WAITING);
    thread::spawn(move || {
        loop {
            let heard = hear();
            let is_last = heard.is_err();
            if sender.blocking_send(heard).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

/// Events that wait for the event loop.
const MOST_WAITING: usize = 1024;
