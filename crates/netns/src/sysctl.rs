//! Kernel parameters (sysctls), read and written below `/proc/sys`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;

use crate::error::Error;

/// The name of a kernel parameter below `/proc/sys`, with methods to read and write the parameter.
///
/// A value below `net` belongs to the network namespace of the thread that reads or writes the
/// value. So work that runs in [`crate::Netns::run`] accesses the values of that namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sysctl {
    parts: Vec<String>,
}

impl Sysctl {
    /// Returns the parameter whose name consists of `parts`: `["net", "ipv4", "ip_forward"]`. An
    /// interface name is one part, even if it contains dots.
    pub fn new(parts: &[&str]) -> Self {
        let parts = parts.iter().map(|part| (*part).to_owned()).collect();
        Self { parts }
    }

    /// Returns the parameter `net.ipv4.conf.INTERFACE.NAME`
    /// (Documentation/networking/ip-sysctl.rst).
    pub fn ipv4(interface: &str, name: &str) -> Self {
        Self::new(&["net", "ipv4", "conf", interface, name])
    }

    /// Returns the parameter `net.ipv6.conf.INTERFACE.NAME`
    /// (Documentation/networking/ip-sysctl.rst).
    pub fn ipv6(interface: &str, name: &str) -> Self {
        Self::new(&["net", "ipv6", "conf", interface, name])
    }

    /// Returns the first 4,096 bytes of the value without the line end. Equivalent to `sysctl -n`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] returns `true` if the kernel has no such parameter.
    pub fn read(&self) -> Result<String, Error> {
        let mut value = [0; LONGEST_VALUE];
        let file = self.open(OFlag::O_RDONLY);
        let read = file.and_then(|mut file| file.read(&mut value));
        let length = read.map_err(|source| Error::Refused {
            operation: format!("read sysctl {}", self.key()),
            source,
        })?;
        let value = value.get(..length).unwrap_or_default();
        Ok(String::from_utf8_lossy(value).trim_end().to_owned())
    }

    /// Writes `value` unless the parameter already has this value. So a read-only `/proc/sys`
    /// causes no error if the value is right. Equivalent to `sysctl -w`.
    ///
    /// # Errors
    /// The parameter does not exist or cannot be read; the value differs and cannot be changed.
    pub fn ensure(&self, value: &str) -> Result<(), Error> {
        let was = self.read()?;
        if was == value {
            return Ok(());
        }
        self.change(&was, value)
    }

    /// Writes `value` and returns the former value. Returns `None` if `value` was already set. Also
    /// returns `None` after it has written a parameter that it may not read, such as the write-only
    /// `net.ipv4.route.flush`, or one that has no value yet: reading `stable_secret` fails with EIO
    /// before the first write (`addrconf_sysctl_stable_secret`). Equivalent to `sysctl -w`.
    ///
    /// # Errors
    /// The value cannot be changed; the parameter cannot be read for another reason than a missing
    /// permission to read.
    pub fn replace(&self, value: &str) -> Result<Option<String>, Error> {
        match self.read() {
            Ok(was) if was == value => Ok(None),
            Ok(was) => {
                self.change(&was, value)?;
                Ok(Some(was))
            }
            Err(Error::Refused { source, .. })
                if source.kind() == ErrorKind::PermissionDenied
                    || source.raw_os_error() == Some(Errno::EIO as i32) =>
            {
                self.change("a hidden value", value)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes `value` without reading the parameter. `was` is its former value, for the error.
    ///
    /// # Errors
    /// The value cannot be changed.
    pub fn change(&self, was: &str, value: &str) -> Result<(), Error> {
        let file = self.open(OFlag::O_WRONLY);
        let written = file.and_then(|mut file| file.write_all(value.as_bytes()));
        written.map_err(|source| Error::Refused {
            operation: format!("set sysctl {} from {was} to {value}", self.key()),
            source,
        })
    }

    /// Writes `value` like [`Self::ensure`], but also succeeds if the parameter does not exist, for
    /// example because the kernel has no IPv6 or a module is not loaded.
    ///
    /// # Errors
    /// The errors of [`Self::ensure`], except the one for a parameter that does not exist.
    pub fn ensure_if_present(&self, value: &str) -> Result<(), Error> {
        match self.ensure(value) {
            Err(error) if error.is_not_found() => Ok(()),
            outcome => outcome,
        }
    }

    /// Returns the name as sysctl(8) spells it, with dots between the parts. Dots inside a part, as
    /// in the name of an interface, become slashes.
    pub fn key(&self) -> String {
        let parts = self.parts.iter().map(|part| part.replace('.', "/"));
        parts.collect::<Vec<_>>().join(".")
    }

    fn open(&self, flags: OFlag) -> io::Result<File> {
        let shared = PER_NAMESPACE.min(self.parts.len());
        let (directory, file) = self.parts.split_at(shared);
        let directory: PathBuf = ["/proc/sys"].into_iter().chain(strs(directory)).collect();
        let file: PathBuf = strs(file).collect();
        let (flags, mode) = (flags | OFlag::O_CLOEXEC, Mode::empty());
        OPENED.with_borrow_mut(|opened| {
            let directory = match opened.entry(directory) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
                    let directory = open(entry.key(), flags, mode)?;
                    entry.insert(directory)
                }
            };
            Ok(File::from(openat(directory, &file, flags, mode)?))
        })
    }
}

fn strs(parts: &[String]) -> impl Iterator<Item = &str> {
    parts.iter().map(String::as_str)
}

/// Open directories such as `/proc/sys/net/ipv4`, by path. They belong to one namespace.
///
/// To find such a directory, the kernel compares the directories of all namespaces one by one
/// (`proc_sys_compare` in `fs/proc/proc_sysctl.c`). With 500 pods this takes 100 to 400 µs; the
/// lookup of a file below the directory takes 15 µs. So a thread opens each directory only once.
pub(crate) type Directories = HashMap<PathBuf, OwnedFd>;

thread_local! {
    /// The directories of the namespace that the calling thread is in.
    pub(crate) static OPENED: RefCell<Directories> = RefCell::default();
}

/// Maximum number of bytes that [`Sysctl::read`] returns. It calls read(2) once, because the kernel
/// returns nothing at a second call.
const LONGEST_VALUE: usize = 4096;

/// Number of leading parts of a parameter that name a directory in [`Directories`]: two, as in
/// `net/ipv4`. The content of such a directory belongs to one namespace.
const PER_NAMESPACE: usize = 2;
