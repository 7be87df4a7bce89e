//! A process of another user that holds every lock it can open, like a process in a pod with the
//! host's network.

use std::fs::{self, File, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

/// Searches files and holds an exclusive lock (flock(2)) on each until this is dropped.
///
/// It is a thread in the caller's namespaces. If user 65534 exists, the kernel decides by that user
/// which files can be opened. In a user namespace without it, the modes of the files decide.
#[derive(Debug)]
pub struct Locker {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Locker {
    pub(crate) fn new() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, (done, first_round)) = (Arc::clone(&is_over), mpsc::channel());
        let thread = Some(thread::spawn(move || hold(&over, &done)));
        first_round.recv().unwrap();
        Self { is_over, thread }
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            drop(thread.join());
        }
    }
}

fn hold(is_over: &AtomicBool, done: &Sender<()>) {
    setfsgid(Gid::from_raw(NOBODY));
    setfsuid(Uid::from_raw(NOBODY));
    let mut held = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        for place in PLACES {
            lock_below(Path::new(place), &mut held);
        }
        // An open file would keep a sandbox alive that its runtime has unmounted.
        held.retain(Held::is_still_there);
        done.send(()).ok();
        thread::park_timeout(PAUSE);
    }
}

/// A locked file.
struct Held {
    file: File,
    path: PathBuf,
}

impl Held {
    fn is_still_there(&self) -> bool {
        let identity = |it: Metadata| (it.dev(), it.ino());
        let (held, found) = (self.file.metadata(), fs::metadata(&self.path));
        found.map(identity).ok() == held.map(identity).ok()
    }
}

fn lock_below(place: &Path, held: &mut Vec<Held>) {
    held.extend(lock(place));
    let entries = fs::read_dir(place).into_iter().flatten();
    for entry in entries.filter_map(Result::ok) {
        if held.len() >= MOST {
            return;
        }
        let path = entry.path();
        if entry.file_type().is_ok_and(|it| it.is_dir()) {
            lock_below(&path, held);
        } else {
            held.extend(lock(&path));
        }
    }
}

/// Locks the file; returns `None` if it is locked already.
fn lock(path: &Path) -> Option<Held> {
    // A pipe must not block the thread.
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path);
    let file = opened.ok()?;
    let is_others = file.metadata().unwrap().mode() & OTHERS_READ != 0;
    let path = path.to_owned();
    (is_others && file.try_lock().is_ok()).then_some(Held { file, path })
}

/// Directories of runtimes and plugins, and namespaces that every process can open.
const PLACES: [&str; 6] = [
    "/proc/thread-self/ns",
    "/run",
    "/var/lib",
    "/opt/cni",
    "/etc/cni",
    "/usr/lib/cni",
];

const NOBODY: u32 = 65534;

const OTHERS_READ: u32 = 0o004;

/// The test itself has to open files, too, and a network may have thousands of leases.
const MOST: usize = 500;

const PAUSE: Duration = Duration::from_millis(20);
