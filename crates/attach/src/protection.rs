//! Elements of an attachment in one table, and what they are made for.

use cni::result::IpConfig;
use netlink::{Link, MacAddress};
use nft::{Element, Table};

/// Elements of an attachment in one table.
#[derive(Debug)]
pub struct Protection {
    /// The desired table.
    pub table: Table,
    /// Elements of its sets.
    pub elements: Vec<Element>,
}

/// The attachment that the elements are for.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    /// The bridge, if the host's end is a port of one.
    pub bridge: Option<&'a Link>,
    /// Name of the host's end.
    pub port: &'a str,
    /// The MAC of the container's end.
    pub mac: MacAddress,
    /// The container's addresses.
    pub ips: &'a [IpConfig],
    /// [`cni::Attachment::owner`].
    pub owner: &'a str,
}
