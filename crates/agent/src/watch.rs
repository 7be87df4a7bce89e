//! Waits until files appear or disappear.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::Path;

use futures::StreamExt as _;
use inotify::{EventStream, Inotify, WatchDescriptor, WatchMask};

/// The directories of some files, watched by inotify.
pub(crate) struct Watch<'p> {
    events: EventStream<[u8; EVENTS]>,
    awaited: BTreeMap<WatchDescriptor, Vec<&'p OsStr>>,
}

impl<'p> Watch<'p> {
    /// Watches for changes in `mask` of `paths`, each in its directory or, as long as that is
    /// missing, in the nearest directory above.
    ///
    /// # Errors
    /// The kernel refuses to watch a directory.
    pub fn start(paths: impl IntoIterator<Item = &'p Path>, mask: WatchMask) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let mut awaited = BTreeMap::<_, Vec<_>>::new();
        for (directory, name) in paths.into_iter().filter_map(nearest) {
            let mask = mask | WatchMask::DELETE_SELF | WatchMask::ONLYDIR;
            let watch = inotify.watches().add(directory, mask)?;
            awaited.entry(watch).or_default().push(name);
        }
        let events = inotify.into_event_stream([0; EVENTS])?;
        Ok(Self { events, awaited })
    }

    /// Waits until one of the files, or a missing directory above it, has changed, or until a
    /// watched directory itself has.
    ///
    /// # Errors
    /// The events cannot be read.
    pub async fn changed(&mut self) -> io::Result<()> {
        while let Some(event) = self.events.next().await.transpose()? {
            let names = self.awaited.get(&event.wd);
            let is_awaited = |name: &OsStr| names.is_some_and(|it| it.contains(&name));
            // An event without a name is of a directory itself, or reports that events are lost.
            if event.name.as_deref().is_none_or(is_awaited) {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the deepest existing directory above `path`, and the name of the file or directory in it
/// that leads to `path`. Returns `None` if no directory above `path` exists.
fn nearest(path: &Path) -> Option<(&Path, &OsStr)> {
    let mut ways = path
        .ancestors()
        .filter_map(|it| Some((it.parent()?, it.file_name()?)));
    ways.find(|(directory, _)| directory.is_dir())
}

/// Size in bytes of the buffer for events. An event contains a name of up to 255 bytes.
const EVENTS: usize = 4096;
