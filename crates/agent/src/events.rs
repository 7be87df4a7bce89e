//! Passes events of blocking sockets to the event loop.

use std::thread;

use netlink::{RouteEvent, RouteEvents};
use tokio::sync::mpsc::{Receiver, channel};

/// A receiver of events from a thread that [`events`] starts. An error is the last value, because
/// it ends that thread.
pub(crate) type Events<T> = Receiver<anyhow::Result<T>>;

/// Calls `next` in a loop on a new thread, and returns a receiver of the values that `next`
/// returns. The thread ends after the first error, or when `next` returns after the receiver was
/// dropped. If [`MOST_WAITING`] values wait for the receiver, the thread waits, too. The kernel may
/// then drop events of the socket; `next` returns a value that reports this loss.
pub(crate) fn events<T: Send + 'static>(
    next: impl Fn() -> anyhow::Result<T> + Send + 'static,
) -> Events<T> {
    let (sender, receiver) = channel(MOST_WAITING);
    thread::spawn(move || {
        loop {
            let heard = next();
            let is_last = heard.is_err();
            if sender.blocking_send(heard).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

/// Returns a receiver of the kernel's events about links, addresses and default routes.
pub(crate) fn route_events() -> anyhow::Result<Events<RouteEvent>> {
    let socket = RouteEvents::open()?;
    Ok(events(move || Ok(socket.receive()?)))
}

/// Maximum number of events that wait for the event loop.
const MOST_WAITING: usize = 1024;
