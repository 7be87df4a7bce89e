//! Waits until the administrator removes the file that the key `unless` names. No repair begins
//! while this file exists.

use std::path::Path;
use std::time::Duration;

use futures::StreamExt as _;
use inotify::{Inotify, WatchMask};
use tokio::time::{sleep, timeout};

/// Waits until `file` does not exist.
pub(super) async fn absence(file: &Path) {
    while file.exists() {
        // Checks again after `LONGEST`, because the watch reports neither a mount over the
        // directory nor a rename of a parent directory.
        if timeout(LONGEST, removal(file))
            .await
            .is_ok_and(|it| it.is_err())
        {
            sleep(PAUSE).await;
        }
    }
}

/// Waits until any file is removed from the directory of `file`, or the directory itself is removed
/// or renamed. Returns at once if `file` does not exist when the watch begins.
async fn removal(file: &Path) -> std::io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    let inotify = Inotify::init()?;
    let removals = WatchMask::DELETE | WatchMask::MOVED_FROM | WatchMask::DELETE_SELF;
    inotify
        .watches()
        .add(directory, removals | WatchMask::MOVE_SELF)?;
    let mut events = inotify.into_event_stream([0; 4096])?;
    if file.exists() {
        events.next().await.transpose()?;
    }
    Ok(())
}

/// Maximum time between two checks whether the file exists.
const LONGEST: Duration = Duration::from_mins(1);

/// Pause before the next check if the kernel refuses to watch the directory.
const PAUSE: Duration = Duration::from_secs(1);
