//! Waits until a socket appears.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt as _;
use inotify::{EventMask, Inotify, WatchMask};
use tokio::time::sleep;

/// Waits until a file appears at one of `paths`. Also returns when one of the missing parent
/// directories appears. Never returns if the kernel refuses to watch the directories.
pub(super) async fn appears(paths: &[PathBuf]) {
    if watch(paths).await.is_err() {
        std::future::pending::<()>().await;
    }
    // Waits, because a process creates the file of a socket a moment before it listens there.
    sleep(SETTLES).await;
}

async fn watch(paths: &[PathBuf]) -> std::io::Result<()> {
    let inotify = Inotify::init()?;
    let mut awaited = BTreeMap::<_, Vec<&OsStr>>::new();
    for path in paths {
        let Some((directory, name)) = nearest(path) else {
            continue;
        };
        let mask = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::DELETE_SELF;
        let watch = inotify
            .watches()
            .add(directory, mask | WatchMask::ONLYDIR)?;
        awaited.entry(watch).or_default().push(name);
    }
    let mut events = inotify.into_event_stream([0; EVENTS])?;
    while let Some(event) = events.next().await {
        let event = event?;
        let names = awaited.get(&event.wd);
        let is_awaited = |name: &_| names.is_some_and(|it| it.contains(name));
        let is_lost = event
            .mask
            .intersects(EventMask::IGNORED | EventMask::Q_OVERFLOW);
        if is_lost || event.name.as_deref().is_some_and(|it| is_awaited(&it)) {
            break;
        }
    }
    Ok(())
}

/// Returns the deepest existing directory above `path`, and the name of the file or directory that
/// has to appear in it next. Returns `None` if no directory above `path` exists.
fn nearest(path: &Path) -> Option<(&Path, &OsStr)> {
    let mut ways = path
        .ancestors()
        .filter_map(|it| Some((it.parent()?, it.file_name()?)));
    ways.find(|(directory, _)| directory.is_dir())
}

/// Time from the creation of a socket until its owner should listen. It is also the shortest time
/// between two returns of [`appears`].
const SETTLES: Duration = Duration::from_millis(100);

/// Size in bytes of the buffer for events. An event contains a name of up to 255 bytes.
const EVENTS: usize = 4096;
