//! Makes tap links by the device file `/dev/net/tun`, because netlink makes none (`tun_validate` in
//! `drivers/net/tun.c`).
//!
//! The kernel makes the link in the network namespace of the thread that opens the file. The mount
//! namespace in which the file is does not matter. This crate does not know what a link is for.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;

mod context;
mod request;

use anyhow::Context as _;
pub use context::{expect_context, run};
use request::Setting;

/// The properties of a tap link that only `/dev/net/tun` can set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tap {
    /// Programs open the link once for each of its queues.
    pub multi_queue: bool,
    /// The user whose programs may open the link, by its number in the user namespace of this
    /// process; `None` for every user.
    pub owner: Option<u32>,
    /// The group whose programs may open the link, by its number; `None` for every group.
    pub group: Option<u32>,
}

/// A new link. Unless [`Self::keep`] is called, the kernel removes the link with this value, if no
/// program has opened another queue.
#[derive(Debug)]
pub struct Device {
    file: File,
    name: String,
}

impl Tap {
    /// Makes a link, down, in the network namespace of the calling thread, with this `SELinux`
    /// context or that of this process. With a context, the `main` of the executable has to call
    /// [`run`]. Every program may open its queues until [`Device::restrict`] is called.
    ///
    /// # Errors
    /// The device file is missing, or the kernel has no such links; the kernel does not know the
    /// context; the kernel refuses the link, for example because a link has this name (EBUSY).
    pub fn create(&self, name: &str, context: Option<&str>) -> anyhow::Result<Device> {
        let device = Device {
            file: open()?,
            name: name.to_owned(),
        };
        match context {
            None => {
                let created = request::create(device.file.as_fd(), name, self.multi_queue);
                device.accepted("create", created)?;
            }
            Some(context) => self.create_as(&device, context)?,
        }
        Ok(device)
    }
}

impl Device {
    /// Lets only programs of the owner and the group of `tap` open the link from now on.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn restrict(&self, tap: &Tap) -> anyhow::Result<()> {
        let owner = tap
            .owner
            .map(|it| (format!("user {it}"), Setting::Owner(it)));
        let group = tap
            .group
            .map(|it| (format!("group {it}"), Setting::Group(it)));
        let mut settings = owner.into_iter().chain(group);
        settings.try_for_each(|(who, it)| self.set(&format!("let {who} alone open"), it))
    }

    /// Lets the link exist without a program that has opened it. Together with [`Tap::create`],
    /// equivalent to `ip tuntap add mode tap`.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn keep(&self) -> anyhow::Result<()> {
        self.set("keep", Setting::Persistent)
    }

    fn set(&self, words: &str, setting: Setting) -> anyhow::Result<()> {
        self.accepted(words, request::set(self.file.as_fd(), setting))
    }

    /// Adds to the error of a request, in `words`, what the operator can do.
    fn accepted(&self, words: &str, outcome: io::Result<()>) -> anyhow::Result<()> {
        let remedy = match outcome.as_ref().map_err(io::Error::kind) {
            Err(ErrorKind::PermissionDenied) => ", for which CAP_NET_ADMIN is needed",
            Err(ErrorKind::ResourceBusy) => {
                "; delete the link of this name, or choose another name"
            }
            Err(ErrorKind::InvalidInput) => "; the plugin's user namespace has no such number",
            _ => "",
        };
        outcome.with_context(|| format!("{words} tap {}{remedy}", self.name))
    }
}

impl fmt::Display for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queues = if self.multi_queue { "multi-queue " } else { "" };
        write!(f, "{queues}tap")?;
        let owner = self.owner.map(|it| format!(" of user {it}"));
        let group = self.group.map(|it| format!(" of group {it}"));
        let mut restrictions = owner.iter().chain(&group);
        restrictions.try_for_each(|it| f.write_str(it))
    }
}

/// Checks that the kernel has tap links, and that this process may open the device file.
///
/// # Errors
/// The file is missing or cannot be opened.
pub fn expect_device() -> anyhow::Result<()> {
    open().map(drop)
}

fn open() -> anyhow::Result<File> {
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    let remedy = match opened.as_ref().map_err(io::Error::kind) {
        Err(ErrorKind::NotFound) => "load the kernel module tun (modprobe tun)",
        Err(ErrorKind::PermissionDenied) => {
            "run the plugin as root, and if it is in a container, give it this device"
        }
        // ENODEV and ENXIO: the file exists, the driver does not.
        _ => "if the kernel module tun is missing, load it (modprobe tun)",
    };
    opened.with_context(|| format!("open {DEVICE}; {remedy}"))
}

const DEVICE: &str = "/dev/net/tun";
