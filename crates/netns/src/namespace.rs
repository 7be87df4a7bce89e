//! An open network namespace.

use std::cell::{Cell, OnceCell};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

use crate::error::{Error, needed};
use crate::sysctl::{Directories, OPENED};

/// An open network namespace. The kernel keeps the namespace as long as this value exists.
#[derive(Debug)]
pub struct Netns {
    file: File,
    path: PathBuf,
}

impl Netns {
    /// Opens the namespace at `path`, such as `/run/netns/blue` or `/proc/123/ns/net`.
    ///
    /// # Errors
    /// - [`Error::Refused`]: the file cannot be opened.
    /// - [`Error::NotANamespace`]: the file is not a namespace. A pipe or device does not block the
    ///   call.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let path = path.to_owned();
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(&path);
        let examined = opened.and_then(|file| Ok((fstatfs(&file)?.filesystem_type(), file)));
        match examined {
            Ok((NSFS_MAGIC, file)) => Ok(Self { file, path }),
            Ok(_) => Err(Error::NotANamespace { path }),
            Err(source) => Err(Error::Refused {
                operation: format!("open network namespace {}", path.display()),
                source,
            }),
        }
    }

    /// Opens the namespace at `path`, where another user may put anything: a device or a pipe is
    /// examined, but not opened.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_untrusted(path: &Path) -> Result<Self, Error> {
        let handle = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_PATH.bits())
            .open(path);
        let examined = handle.and_then(|it| Ok((fstatfs(&it)?.filesystem_type(), it)));
        let path = path.to_owned();
        match examined {
            Ok((NSFS_MAGIC, handle)) => {
                let same = format!("/proc/self/fd/{}", handle.as_raw_fd());
                Ok(Self {
                    path,
                    ..Self::open(Path::new(&same))?
                })
            }
            Ok(_) => Err(Error::NotANamespace { path }),
            Err(source) => Err(Error::Refused {
                operation: format!("examine {}", path.display()),
                source,
            }),
        }
    }

    /// Returns the path at which the namespace was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the calling thread's own namespace.
    ///
    /// # Errors
    /// [`Error::Refused`]: /proc is not mounted.
    pub fn own() -> Result<Self, Error> {
        Self::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// Runs `work` on a new thread in a temporary namespace and returns its result. Equivalent to
    /// `unshare --net`.
    ///
    /// # Errors
    /// [`Error::Refused`]: `CAP_SYS_ADMIN` is missing, or no thread can be started.
    pub fn run_in_new<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let inside = || -> io::Result<T> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        };
        on_a_thread(inside).map_err(|source| Error::Refused {
            operation: format!("make a network namespace{}", needed(&source)),
            source,
        })
    }

    /// Runs `work` in the namespace and returns its result. Equivalent to `nsenter --net=PATH`.
    ///
    /// The calling thread enters the namespace and returns; a thread of its own would cost ADD half a
    /// millisecond, because it wakes another processor twice. `work` runs on a new thread only if the
    /// calling one could not return: a process of a user namespace may enter its container's
    /// namespace, but not the host's.
    ///
    /// # Errors
    /// - [`Error::NotANamespace`]: the file is a namespace of another kind, such as a pid
    ///   namespace.
    /// - [`Error::Refused`]: `CAP_SYS_ADMIN` is missing in the user namespace of the caller or of the
    ///   network namespace (setns(2)), or no thread can be started.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let refused = |source: io::Error| {
            let path = self.path.clone();
            if source.kind() == io::ErrorKind::InvalidInput {
                return Error::NotANamespace { path };
            }
            let (path, needed) = (path.display(), needed(&source));
            let operation = format!("enter network namespace {path}{needed}");
            Error::Refused { operation, source }
        };
        let entered = if can_return() {
            Entered::new(self.as_fd()).map(|_entered| work())
        } else {
            on_a_thread(|| {
                enter(self.as_fd())?;
                Ok(work())
            })
        };
        entered.map_err(refused)
    }
}

thread_local! {
    /// The calling thread's own namespace; `None` if the thread cannot leave and enter it.
    static OWN: OnceCell<Option<File>> = const { OnceCell::new() };
    static IS_AWAY: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling thread is in another namespace than its own, because
/// [`Netns::run`] runs work there.
pub fn is_away() -> bool {
    IS_AWAY.get()
}

/// Returns whether the calling thread is in its own namespace, and can return after it left. It
/// cannot if /proc is not mounted, or if `CAP_SYS_ADMIN` is missing in the user namespace of the
/// thread's network namespace.
fn can_return() -> bool {
    let open = || {
        let own = File::open("/proc/thread-self/ns/net")?;
        enter(own.as_fd())?;
        Ok::<_, io::Error>(own)
    };
    !is_away() && OWN.with(|own| own.get_or_init(|| open().ok()).is_some())
}

/// Number of attempts to return to the own namespace: setns(2) needs memory, which may be short for
/// a moment.
const ATTEMPTS: u32 = 10;

/// The calling thread is in another namespace, and returns to its own when this value is dropped.
struct Entered {
    /// The directories of the thread's own namespace.
    directories: Directories,
}

impl Entered {
    fn new(namespace: BorrowedFd<'_>) -> io::Result<Self> {
        enter(namespace)?;
        IS_AWAY.set(true);
        Ok(Self {
            directories: OPENED.take(),
        })
    }
}

impl Drop for Entered {
    #[expect(clippy::print_stderr, reason = "nothing can be returned")]
    fn drop(&mut self) {
        let returned = OWN.with(|own| {
            let own = own.get().and_then(Option::as_ref);
            own.is_some_and(|own| (0..ATTEMPTS).any(|_| enter(own.as_fd()).is_ok()))
        });
        if !returned {
            // Whatever this thread did next would change the wrong namespace.
            eprintln!("a thread cannot return from a network namespace");
            std::process::abort();
        }
        OPENED.set(std::mem::take(&mut self.directories));
        IS_AWAY.set(false);
    }
}

/// Runs `work` on a new thread and returns its result. A panic of `work` continues in the calling
/// thread.
fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, work)?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "only this crate enters a namespace, as .clippy.toml says"
)]
fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(setns(namespace, CloneFlags::CLONE_NEWNET)?)
}
