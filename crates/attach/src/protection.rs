//! Elements of an attachment in one table, and what they are made for.

use cni::result::IpConfig;
use netlink::{Link, MacAddress};
use nft::{Element, Table};

/// Elements of an attachment in one table.
#[derive(Debug)]
pub(crate) struct Protection {
    /// The table as it shall be.
    pub table: Table,
    /// Elements of its sets.
    pub elements: Vec<Element>,
}

/// The attachment that elements are made for.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    /// The bridge, if the host's end is a port of one.
    pub bridge: Option<&'a Link>,
    /// The host's end, by its name.
    pub port: &'a str,
    /// The MAC of the container's end.
    pub mac: MacAddress,
    /// The container's addresses.
    pub ips: &'a [IpConfig],
    /// [`cni::Attachment::owner`].
    pub owner: &'a str,
}
