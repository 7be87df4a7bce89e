//! Waits until the administrator removes the file that the key `unless` names. No repair begins
//! while this file exists.

use std::io;
use std::path::Path;
use std::time::Duration;

use inotify::WatchMask;
use tokio::time::{sleep, timeout};

use crate::watch::Watch;

/// Waits until `file` does not exist.
pub(super) async fn until_removed(file: &Path) {
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

/// Waits until `file` or its directory is removed or renamed. Returns at once if `file` does not
/// exist when the watch begins.
async fn removal(file: &Path) -> io::Result<()> {
    let removals = WatchMask::DELETE | WatchMask::MOVED_FROM | WatchMask::MOVE_SELF;
    let mut watch = Watch::start([file], removals)?;
    if file.exists() {
        watch.changed().await?;
    }
    Ok(())
}

/// Maximum time between two checks whether the file exists.
const LONGEST: Duration = Duration::from_mins(1);

/// Pause before the next check if the kernel refuses to watch the directory.
const PAUSE: Duration = Duration::from_secs(1);
