//! Changes in the directory of device plugins, by inotify and the kernel's table of mounts.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use cni::files::{identity, if_present};
use futures::{FutureExt as _, StreamExt as _};
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchMask};
use kubelet::device_plugin::KUBELET_SOCKET;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::time::sleep;

use super::resource::OWN;
use crate::events::{Events, events};
use crate::health::Health;

/// Reports changes in the kubelet's directory of device plugins, which may disappear and come back.
pub(crate) struct Directory {
    path: PathBuf,
    events: EventStream<[u8; 4096]>,
    /// Reports each change of a mount. inotify does not report that a file system is mounted over a
    /// directory.
    mounts: Events<()>,
    /// The directories of the path when the agent last began to watch them.
    watched: Vec<Option<(u64, u64)>>,
    health: Health,
}

impl Directory {
    /// Begins to watch the directory, which need not exist. If the kernel refuses, tries again
    /// later: other processes of root may have used up the inotify instances and watches.
    ///
    /// # Errors
    /// The kernel's table of mounts cannot be opened.
    pub async fn watch(path: PathBuf, health: Health) -> anyhow::Result<Self> {
        let mounts = mounts().with_context(|| format!("open {MOUNTS}"))?;
        let events = loop {
            match Inotify::init().and_then(|it| it.into_event_stream([0; 4096])) {
                Ok(events) => break events,
                Err(error) => {
                    let advice = advice(&error);
                    health.set(HEALTH, Some(format!("start inotify: {error}{advice}")));
                }
            }
            sleep(PAUSE).await;
        };
        let mut directory = Self {
            path,
            events,
            mounts,
            watched: Vec::new(),
            health,
        };
        directory.watch_all().await;
        Ok(directory)
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
            tokio::select! {
                event = self.events.next() => {
                    let event = event.context("inotify ended")?;
                    if self.is_change(&event.context("read from inotify")?) {
                        break;
                    }
                }
                mounted = self.mounts.recv() => {
                    mounted.context("the thread that watches mounts ended")??;
                    if self.directories() != self.watched {
                        break;
                    }
                }
            }
        }
        while let Some(Some(Ok(_))) = self.events.next().now_or_never() {}
        self.watch_all().await;
        Ok(())
    }

    /// Returns the identities of the directory and of all directories above it.
    fn directories(&self) -> Vec<Option<(u64, u64)>> {
        let ways = self.path.ancestors();
        ways.map(|it| identity(fs::metadata(it))).collect()
    }

    /// Watches the directory and all directories above it. If the kernel refuses a watch, sets the
    /// failure in the agent's health, which `/healthz` shows, and tries again.
    async fn watch_all(&mut self) {
        self.watched = self.directories();
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
            match if_present(self.events.watches().add(way, changes())) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    let advice = advice(&error);
                    bail!("watch {}: {error}{advice}", way.display());
                }
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

/// Returns a receiver of changes of mounts, which the kernel reports as priority events of a file.
fn mounts() -> io::Result<Events<()>> {
    let table = File::open(MOUNTS)?;
    Ok(events(move || {
        let mut polled = [PollFd::new(table.as_fd(), PollFlags::POLLPRI)];
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error).context("wait for a change of mounts"),
        }
    }))
}

/// Returns which limit of the kernel to raise after this error of inotify, if it is one.
fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE) => ": raise the sysctl fs.inotify.max_user_instances",
        Some(Errno::ENOSPC) => ": raise the sysctl fs.inotify.max_user_watches",
        _ => "",
    }
}

/// Returns the events to watch: entries appear or disappear, and the directory itself is deleted or
/// moved.
fn changes() -> WatchMask {
    let entries = WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVE;
    entries | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF | WatchMask::ONLYDIR
}

/// The table of mounts of this process.
const MOUNTS: &str = "/proc/self/mountinfo";

/// Name of the entry in the agent's health that reports inotify errors for the kubelet's directory
/// of device plugins.
const HEALTH: &str = "devices: directory";

/// The time between two attempts to watch.
const PAUSE: Duration = Duration::from_secs(1);
