//! Waits until a socket appears.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt as _;
use inotify::{EventMask, Inotify, WatchMask};
use tokio::time::sleep;

/// Returns after a file was created at one of `paths`, or a directory on the way to it. Never
/// returns if the kernel cannot report that.
pub(super) async fn appears(paths: &[PathBuf]) {
    if watch(paths).await.is_err() {
        std::future::pending::<()>().await;
    }
    // A socket is made before its owner listens.
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

/// Returns the deepest existing directory on the way to `path`, and the name that is awaited in it.
fn nearest(path: &Path) -> Option<(&Path, &OsStr)> {
    let mut ways = path
        .ancestors()
        .filter_map(|it| Some((it.parent()?, it.file_name()?)));
    ways.find(|(directory, _)| directory.is_dir())
}

/// Also the shortest time between two returns, however many files appear.
const SETTLES: Duration = Duration::from_millis(100);

/// Bytes of the buffer for events, each of which has a name of up to 255 bytes.
const EVENTS: usize = 4096;
