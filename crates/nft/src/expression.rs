//! Expressions that netlink-packet-netfilter has no type for, with the numbers of
//! `include/uapi/linux/netfilter/nf_tables.h`.

use netlink_packet_core::DefaultNla;
use netlink_packet_netfilter::nftables::{
    Bitwise, Cmp, DataAttribute, Expressions, Operator, Register,
};

use crate::ip_version::IpVersion;
use crate::register::u32_of;

/// How masquerading chooses the source port of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourcePort {
    /// The client's port, if it is free.
    Kept,
    /// A random port. Two simultaneous packets never choose the same one; otherwise the kernel
    /// would drop one of them (`insert_failed`).
    FullyRandom,
}

/// `fib daddr type`: the type of the destination address on this host.
pub(crate) fn destination_type(register: Register) -> Expressions {
    other(
        "fib",
        &[
            (FIB_REGISTER, register.into()),
            (FIB_RESULT, FIB_ADDRESS_TYPE),
            (FIB_FLAGS, FIB_DESTINATION),
        ],
    )
}

/// `ct status`
pub(crate) fn connection_status(register: Register) -> Expressions {
    other("ct", &[(CT_REGISTER, register.into()), (CT_KEY, CT_STATUS)])
}

/// `dnat` to the address in one register and the port in another one.
pub(crate) fn translate(version: IpVersion, address: Register, port: Register) -> Expressions {
    other(
        "nat",
        &[
            (NAT_TYPE, NAT_DESTINATION),
            (NAT_FAMILY, version.number().into()),
            (NAT_ADDRESS, address.into()),
            (NAT_PORT, port.into()),
        ],
    )
}

pub(crate) fn masquerade(port: SourcePort) -> Expressions {
    match port {
        SourcePort::Kept => other("masq", &[]),
        SourcePort::FullyRandom => other("masq", &[(MASQUERADE_FLAGS, RANDOM_FULLY)]),
    }
}

/// Keeps the bits of a register that are set in `mask`, which is as long as the register's content.
pub(crate) fn masked(register: Register, mask: Vec<u8>) -> Expressions {
    Expressions::Bitwise(vec![
        Bitwise::SourceRegister(register),
        Bitwise::DestinationRegister(register),
        Bitwise::Length(u32_of(mask.len())),
        Bitwise::Xor(DataAttribute::Value(vec![0; mask.len()])),
        Bitwise::Mask(DataAttribute::Value(mask)),
    ])
}

pub(crate) fn compare(register: Register, operator: Operator, value: &[u8]) -> Expressions {
    Expressions::Cmp(vec![
        Cmp::SourceRegister(register),
        Cmp::Op(operator),
        Cmp::Data(DataAttribute::Value(value.to_vec())),
    ])
}

/// Returns the build option that adds an expression to the kernel.
pub(crate) fn option_for(expression: &Expressions) -> Option<&'static str> {
    let Expressions::Other {
        expression_type, ..
    } = expression
    else {
        return None;
    };
    match expression_type.as_str() {
        "ct" => Some("CONFIG_NFT_CT"),
        "fib" => Some("CONFIG_NFT_FIB_INET"),
        "masq" => Some("CONFIG_NFT_MASQ"),
        "nat" => Some("CONFIG_NFT_NAT"),
        _ => None,
    }
}

/// Builds an expression whose attributes are all numbers in network byte order.
fn other(name: &str, attributes: &[(u16, u32)]) -> Expressions {
    let attributes = attributes
        .iter()
        .map(|(kind, number)| DefaultNla::new(*kind, number.to_be_bytes().to_vec()));
    Expressions::Other {
        expression_type: name.to_owned(),
        attributes: attributes.collect(),
    }
}

/// `RTN_LOCAL`: an address of this host.
pub(crate) const LOCAL: u32 = 2;

/// `IPS_DST_NAT`: the destination address of the connection was translated.
pub(crate) const TRANSLATED: u32 = 1 << 5;

/// `NFTA_FIB_DREG`, `NFTA_FIB_RESULT` and `NFTA_FIB_FLAGS`
const FIB_REGISTER: u16 = 1;
const FIB_RESULT: u16 = 2;
const FIB_FLAGS: u16 = 3;

/// `NFT_FIB_RESULT_ADDRTYPE` and `NFTA_FIB_F_DADDR`
const FIB_ADDRESS_TYPE: u32 = 3;
const FIB_DESTINATION: u32 = 1 << 1;

/// `NFTA_CT_DREG` and `NFTA_CT_KEY`
const CT_REGISTER: u16 = 1;
const CT_KEY: u16 = 2;

/// `NFT_CT_STATUS`
const CT_STATUS: u32 = 2;

/// `NFTA_NAT_TYPE`, `NFTA_NAT_FAMILY`, `NFTA_NAT_REG_ADDR_MIN` and `NFTA_NAT_REG_PROTO_MIN`
const NAT_TYPE: u16 = 1;
const NAT_FAMILY: u16 = 2;
const NAT_ADDRESS: u16 = 3;
const NAT_PORT: u16 = 5;

/// `NFT_NAT_DNAT`
const NAT_DESTINATION: u32 = 1;

/// `NFTA_MASQ_FLAGS`
const MASQUERADE_FLAGS: u16 = 1;

/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`
const RANDOM_FULLY: u32 = 1 << 4;
