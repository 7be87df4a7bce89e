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
mod error;
mod request;

pub use context::{expect_context, run};
pub use error::Error;
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
    /// - [`Error::Open`]: the device file is missing, or the kernel has no such links.
    /// - [`Error::Context`]: the kernel does not know the context.
    /// - [`Error::Refused`], for example because a link has this name (EBUSY).
    pub fn create(&self, name: &str, context: Option<&str>) -> Result<Device, Error> {
        let device = Device {
            file: open()?,
            name: name.to_owned(),
        };
        match context {
            None => {
                let created = request::create(device.file.as_fd(), name, self.multi_queue);
                created.map_err(device.refused("create"))?;
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
    /// [`Error::Refused`].
    pub fn restrict(&self, tap: &Tap) -> Result<(), Error> {
        if let Some(owner) = tap.owner {
            self.set(
                &format!("let user {owner} alone open"),
                Setting::Owner(owner),
            )?;
        }
        if let Some(group) = tap.group {
            self.set(
                &format!("let group {group} alone open"),
                Setting::Group(group),
            )?;
        }
        Ok(())
    }

    /// Lets the link exist without a program that has opened it. Together with [`Tap::create`],
    /// equivalent to `ip tuntap add mode tap`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn keep(&self) -> Result<(), Error> {
        self.set("keep", Setting::Persistent)
    }

    fn set(&self, words: &str, setting: Setting) -> Result<(), Error> {
        request::set(self.file.as_fd(), setting).map_err(self.refused(words))
    }

    fn refused(&self, words: &str) -> impl FnOnce(io::Error) -> Error + use<> {
        let operation = format!("{words} tap {}", self.name);
        |source| Error::Refused {
            operation,
            remedy: match source.kind() {
                ErrorKind::PermissionDenied => ", for which CAP_NET_ADMIN is needed",
                ErrorKind::ResourceBusy => "; delete the link of this name, or choose another name",
                ErrorKind::InvalidInput => "; the plugin's user namespace has no such number",
                _ => "",
            },
            source,
        }
    }
}

impl fmt::Display for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.multi_queue {
            "multi-queue tap"
        } else {
            "tap"
        })?;
        let owner = self.owner.map(|it| format!(" of user {it}"));
        let group = self.group.map(|it| format!(" of group {it}"));
        owner
            .into_iter()
            .chain(group)
            .try_for_each(|it| f.write_str(&it))
    }
}

/// Checks that the kernel has tap links, and that this process may open the device file.
///
/// # Errors
/// [`Error::Open`].
pub fn expect_device() -> Result<(), Error> {
    open().map(drop)
}

fn open() -> Result<File, Error> {
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    opened.map_err(|source| Error::Open {
        remedy: match source.kind() {
            ErrorKind::NotFound => "; load the kernel module tun (modprobe tun)",
            ErrorKind::PermissionDenied => {
                "; run the plugin as root, and if it is in a container, give it this device"
            }
            // ENODEV and ENXIO: the file exists, the driver does not.
            _ => "; if the kernel module tun is missing, load it (modprobe tun)",
        },
        source,
    })
}

const DEVICE: &str = "/dev/net/tun";
