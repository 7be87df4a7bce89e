//! A process of another user that holds every lock it can open, as one in a pod of the host's network may.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

/// Looks for files, and holds an exclusive lock (flock(2)) on each until this is dropped.
///
/// A thread in the namespaces of the one that makes it. Where there is a user 65534 the kernel judges by
/// it what can be opened; in a user namespace without one, the modes of the files decide.
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
    let mut known = HashSet::new();
    while !is_over.load(Ordering::Relaxed) {
        for place in PLACES {
            lock_below(Path::new(place), &mut known, &mut held);
        }
        done.send(()).ok();
        thread::park_timeout(PAUSE);
    }
}

fn lock_below(place: &Path, known: &mut HashSet<(u64, u64)>, held: &mut Vec<File>) {
    lock(place, known, held);
    let entries = fs::read_dir(place).into_iter().flatten();
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        if entry.file_type().is_ok_and(|it| it.is_dir()) {
            lock_below(&path, known, held);
        } else {
            lock(&path, known, held);
        }
    }
}

fn lock(path: &Path, known: &mut HashSet<(u64, u64)>, held: &mut Vec<File>) {
    // A pipe must not hold it up.
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path);
    let Ok(file) = opened else {
        return;
    };
    let metadata = file.metadata().unwrap();
    let is_others = metadata.mode() & OTHERS_READ != 0;
    if is_others && file.try_lock().is_ok() && known.insert((metadata.dev(), metadata.ino())) {
        held.push(file);
    }
}

/// Where runtimes and plugins have files, and the namespaces that every process can open.
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

const PAUSE: Duration = Duration::from_millis(20);
