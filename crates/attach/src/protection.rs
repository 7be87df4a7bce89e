//! The `nf_tables` elements of an attachment, and the data from which they are made.

use cni::result::IpConfig;
use netlink::{Link, MacAddress};
use nft::{Element, Table};

/// The elements of an attachment in one `nf_tables` table.
#[derive(Debug)]
pub struct Protection {
    /// The table, with the sets, chains and rules that it must have.
    pub table: Table,
    /// The attachment's elements in the sets of this table.
    pub elements: Vec<Element>,
}

/// The data of an attachment from which its `nf_tables` elements are made.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    /// The bridge, if the host's end of the veth pair is a port of one.
    pub bridge: Option<&'a Link>,
    /// Name of the host's end of the veth pair.
    pub port: &'a str,
    /// The MAC that ADD gave the container's end of the veth pair.
    pub mac: MacAddress,
    /// The container's addresses.
    pub ips: &'a [IpConfig],
    /// The attachment's tag: [`cni::Attachment::owner`].
    pub owner: &'a str,
}
