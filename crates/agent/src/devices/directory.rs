//! Changes in the directory of device plugins, by inotify.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use cni::files::if_present;
use futures::{FutureExt as _, StreamExt as _};
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchMask};
use kubelet::device_plugin::KUBELET_SOCKET;
use tokio::time::sleep;

use super::resource::OWN;
use crate::health::Health;

/// Reports changes in the kubelet's directory of device plugins, which may disappear and come back.
pub(crate) struct Directory {
    path: PathBuf,
    events: EventStream<[u8; 4096]>,
    health: Health,
}

impl Directory {
    /// Begins to watch the directory, which need not exist. If the kernel refuses, tries again
    /// later: other processes of root may have used up the inotify instances and watches.
    pub async fn watch(path: PathBuf, health: Health) -> Self {
        let events = loop {
            match Inotify::init().and_then(|it| it.into_event_stream([0; 4096])) {
                Ok(events) => break events,
                Err(error) => health.set(HEALTH, Some(format!("start inotify: {error}"))),
            }
            sleep(PAUSE).await;
        };
        let directory = Self {
            path,
            events,
            health,
        };
        directory.watch_all().await;
        directory
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a change. Combines all changes that inotify has already reported into one.
    ///
    /// # Errors
    /// Events cannot be read.
    pub async fn changed(&mut self) -> anyhow::Result<()> {
        loop {
            let event = self.events.next().await.context("inotify ended")?;
            if self.is_change(&event.context("read from inotify")?) {
                break;
            }
        }
        while let Some(Some(Ok(_))) = self.events.next().now_or_never() {}
        self.watch_all().await;
        Ok(())
    }

    /// Watches the directory and all directories above it. If the kernel refuses a watch, sets the
    /// failure in the agent's health, which `/healthz` shows, and tries again.
    async fn watch_all(&self) {
        while let Err(error) = self.try_watch_all() {
            self.health.set(HEALTH, Some(format!("{error:#}")));
            sleep(PAUSE).await;
        }
        self.health.set(HEALTH, None);
    }

    /// Watches each directory of the path, from the root on. If a directory is missing, the watch
    /// of its parent reports when it appears.
    fn try_watch_all(&self) -> anyhow::Result<()> {
        let mut ways: Vec<_> = self.path.ancestors().collect();
        ways.reverse();
        for way in ways {
            let added = if_present(self.events.watches().add(way, changes()));
            if added
                .with_context(|| format!("watch {}", way.display()))?
                .is_none()
            {
                break;
            }
        }
        Ok(())
    }

    /// Returns whether an inotify event reports one of these changes:
    ///
    /// - One of the agent's own sockets, or the agent's lock, disappeared.
    /// - The kubelet's socket, the directory or a directory above it appeared or disappeared.
    /// - inotify lost events.
    fn is_change(&self, event: &EventOwned) -> bool {
        let Some(name) = event.name.as_deref() else {
            // A directory of the path disappeared, or events were lost.
            return true;
        };
        if name.to_string_lossy().starts_with(OWN) {
            return (EventMask::DELETE | EventMask::MOVED_FROM).intersects(event.mask);
        }
        let mut parts = self.path.iter().chain([OsStr::new(KUBELET_SOCKET)]);
        parts.any(|it| it == name)
    }
}

/// Returns the events to watch: entries appear or disappear, and the directory itself is deleted or
/// moved.
fn changes() -> WatchMask {
    let entries = WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVE;
    entries | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF | WatchMask::ONLYDIR
}

/// Name of the entry in the agent's health that reports inotify errors for the kubelet's directory
/// of device plugins.
const HEALTH: &str = "devices: directory";

/// The time between two attempts to watch.
const PAUSE: Duration = Duration::from_secs(1);
