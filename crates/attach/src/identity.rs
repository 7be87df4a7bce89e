//! The identity of a network namespace, since another one may be at its path later.

use std::fs;
use std::path::Path;

use cni::files::identity;
use netlink::Connection;
use serde::{Deserialize, Serialize};

/// What identifies a namespace. The cookie is a number that the kernel gives no other namespace of
/// this boot (`SO_NETNS_COOKIE`, Linux 5.14). On an older kernel, only device and inode identify it,
/// and the kernel reuses inodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// `None` if the kernel has no cookies.
    cookie: Option<u64>,
    /// Device and inode, without a cookie.
    file: Option<(u64, u64)>,
}

impl Identity {
    /// Returns the identity of the namespace at `path`, to which `connection` leads.
    pub fn of(connection: &Connection, path: &Path) -> Self {
        let cookie = connection.namespace_cookie();
        let file = || identity(fs::metadata(path));
        Self {
            cookie,
            file: cookie.map_or_else(file, |_| None),
        }
    }

    /// Returns the number (nsid) that ADD gives the namespace. Only the upper half of the numbers is used,
    /// because the kernel itself gives the lowest free one. `None` without a cookie.
    pub fn number(&self) -> Option<i32> {
        let low = self.cookie? % (1 << 30);
        Some(i32::try_from(low).ok()? + (1 << 30))
    }

    /// Returns whether both are the same namespace.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self.cookie, other.cookie) {
            (Some(one), Some(other)) => one == other,
            _ => self.file.is_some() && self.file == other.file,
        }
    }
}
