//! A network namespace with a name, as runtimes make for each pod.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::place::Place;

/// A namespace at /run/netns/NAME. It ends with the host or by [`Self::remove`].
#[derive(Debug)]
pub struct Sandbox {
    name: String,
    path: PathBuf,
}

impl Sandbox {
    /// Creates it like `ip netns add NAME`.
    pub(crate) fn new(name: &str) -> Self {
        let path = Path::new("/run/netns").join(name);
        File::create_new(&path).unwrap();
        mount_new(&path);
        Self {
            name: name.to_owned(),
            path,
        }
    }

    /// Returns its name, which is also its container ID.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns `CNI_NETNS`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the namespace like `ip netns delete`; its links disappear a little later.
    pub fn remove(&self) {
        self.unmount();
        fs::remove_file(&self.path).unwrap();
    }

    /// Ends the namespace but keeps its mount point, as after a crash.
    pub fn unmount(&self) {
        umount2(&self.path, MntFlags::MNT_DETACH).unwrap();
    }

    /// Replaces the namespace by a new one, as a reboot does.
    pub fn renew(&self) {
        self.unmount();
        mount_new(&self.path);
    }

    /// Starts a process inside, for at most a minute.
    pub fn inhabitant(&self) -> Inhabitant {
        let sleep = || Command::new("sleep").arg("60").spawn();
        Inhabitant(self.enter(sleep).unwrap())
    }
}

/// A process that keeps its sandbox alive until this is dropped.
#[derive(Debug)]
pub struct Inhabitant(Child);

impl Inhabitant {
    /// Returns the sandbox's path for runtimes that mount none: `/proc/PID/ns/net`.
    pub fn netns(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.0.id()).into()
    }
}

impl Drop for Inhabitant {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Place for Sandbox {
    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            set_namespace(&self.path);
            work()
        };
        let joined = thread::scope(|scope| scope.spawn(inside).join());
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Mounts a new namespace at `path`.
fn mount_new(path: &Path) {
    let made = thread::scope(|scope| {
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let nothing = None::<&str>;
            let own = Some("/proc/thread-self/ns/net");
            mount(own, path, nothing, MsFlags::MS_BIND, nothing)
        };
        scope.spawn(make).join().unwrap()
    });
    made.unwrap();
}

#[expect(
    clippy::disallowed_methods,
    reason = "the tests link no crate of the workspace, so this is their only door"
)]
fn set_namespace(path: &Path) {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    setns(file, CloneFlags::CLONE_NEWNET).unwrap();
}
