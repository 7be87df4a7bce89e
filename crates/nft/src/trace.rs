//! Traces rules that packets match, by the kernel's reports on marked packets. Like `nft monitor
//! trace`.

use std::fmt;
use std::time::Duration;

use netlink::{Content, Silence};

use crate::connection::Connection;
use crate::error::Error;
use crate::raw::{self, RawMessage, attribute, nested};
use crate::ruleset::{
    CHAIN_HOOK, NEW_CHAIN, NEW_RULE, NEW_TABLE, RULE_EXPRESSIONS, RulePlace, number,
};
use crate::socket::{NetfilterSocket, unheard};

/// Receives the kernel's reports on packets of this namespace.
pub struct Tracer {
    socket: NetfilterSocket,
}

/// The end of a packet's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The rule; for a chain's policy, the chain with handle 0.
    pub place: RulePlace,
    /// Verdict of the rule or policy.
    pub verdict: EndVerdict,
}

/// Verdict that ended a packet's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndVerdict {
    /// The packet was dropped, with or without a rejection.
    Drop,
    /// The packet went to a program (`queue`), which decides.
    Queue,
}

impl Tracer {
    /// Marks TCP, UDP and ARP packets on `links` and from this host, and listens to the reports.
    /// The tables that this creates stay, so no other program should use the namespace.
    ///
    /// # Errors
    /// [`Error::Socket`]. Packets of a family that the kernel cannot mark are not traced.
    pub fn start(connection: &Connection, links: &[&str]) -> Result<Self, Error> {
        let socket = NetfilterSocket::listening(TRACES)?;
        socket.make_room()?;
        let netdev = links.iter().map(|it| attribute(1, &zero_ended(it)));
        let netdev = nested(HOOK_LINKS, &netdev.collect::<Vec<_>>());
        for (family, hook, links) in [
            (NETDEV, INGRESS, Some(netdev)),
            (BRIDGE, PREROUTING, None),
            (INET, PREROUTING, None),
            (INET, OUTPUT, None),
        ] {
            let name = format!("{TABLE}-{hook}");
            let messages = marking((family, &name), (hook, links));
            if let Err(error @ Error::Socket { .. }) =
                connection.socket.commit_raw(&messages, "trace")
            {
                return Err(error);
            }
        }
        Ok(Self { socket })
    }

    /// Returns the packets that ended since the last call, without waiting.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn ended(&self) -> Result<Vec<Ended>, Error> {
        let mut ended = Vec::new();
        loop {
            match self.socket.report(Duration::ZERO) {
                Ok(report) => {
                    if let Content::Object(body) = report.content {
                        let message = RawMessage::read(report.header.kind, &body);
                        ended.extend(message.as_ref().and_then(Ended::read));
                    }
                }
                Err(Silence::Deadline) => return Ok(ended),
                // Reports were lost; a sender that gets no answer repeats the packet.
                Err(Silence::Lost) => {}
                Err(Silence::Socket(source)) => return Err(unheard(source)),
            }
        }
    }
}

impl Ended {
    fn read(message: &RawMessage) -> Option<Self> {
        let is_policy = number(message.value(TYPE)) == POLICY;
        let verdict = message.value(VERDICT).and_then(|it| raw::value(it, 1));
        let verdict = if is_policy {
            message.value(POLICY_VERDICT)
        } else {
            verdict
        };
        let verdict = match number(Some(verdict?)) & VERDICT_MASK {
            0 => EndVerdict::Drop,
            3 => EndVerdict::Queue,
            _ => return None,
        };
        let place = RulePlace {
            family: message.family,
            table: message.text(1),
            chain: message.text(2),
            handle: number(message.value(3).filter(|_| !is_policy)),
        };
        (message.kind == TRACE).then_some(Self { place, verdict })
    }
}

impl RulePlace {
    /// Returns the family's name in nft(8).
    pub fn family(&self) -> &'static str {
        match self.family {
            INET => "inet",
            2 => "ip",
            3 => "arp",
            NETDEV => "netdev",
            BRIDGE => "bridge",
            10 => "ip6",
            _ => "?",
        }
    }
}

impl fmt::Display for RulePlace {
    /// Formats `table ip filter, chain FORWARD`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "table {} {}, chain {}",
            self.family(),
            self.table,
            self.chain
        )
    }
}

/// Returns messages for a table whose chain marks packets before other chains see them.
fn marking((family, name): (u8, &str), (hook, links): (u32, Option<Vec<u8>>)) -> Vec<RawMessage> {
    let message = |kind, parts: &[Vec<u8>]| RawMessage::new(kind, family, parts.concat());
    let table = attribute(1, &zero_ended(name));
    let mut parts = vec![
        attribute(1, &hook.to_be_bytes()),
        attribute(2, &FIRST.to_be_bytes()),
    ];
    parts.extend(links);
    let chain = [
        table.clone(),
        attribute(3, &zero_ended(name)),
        nested(CHAIN_HOOK, &parts),
        attribute(7, b"filter\0"),
    ];
    let mut messages = vec![
        message(NEW_TABLE, std::slice::from_ref(&table)),
        message(NEW_CHAIN, &chain),
    ];
    for (key, value) in MARKED {
        let expressions = [
            expression("meta", &[(1, REGISTER), (2, *key)], None),
            expression("cmp", &[(1, REGISTER), (2, 0)], Some((3, value))),
            expression("immediate", &[(1, REGISTER)], Some((2, &[1]))),
            expression("meta", &[(2, TRACED), (3, REGISTER)], None),
        ];
        let parts = [
            table.clone(),
            attribute(2, &zero_ended(name)),
            nested(RULE_EXPRESSIONS, &expressions),
        ];
        messages.push(message(NEW_RULE, &parts));
    }
    messages
}

/// Encodes an expression with these numbers and a value.
fn expression(name: &str, numbers: &[(u16, u32)], value: Option<(u16, &[u8])>) -> Vec<u8> {
    let numbers = numbers
        .iter()
        .map(|(kind, it)| attribute(*kind, &it.to_be_bytes()));
    let value = value.map(|(kind, value)| nested(kind, &[attribute(1, value)]));
    let data: Vec<_> = numbers.chain(value).collect();
    nested(1, &[attribute(1, &zero_ended(name)), nested(2, &data)])
}

fn zero_ended(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

/// `NFNLGRP_NFTRACE`
const TRACES: u32 = 9;

/// `NFT_MSG_TRACE`, `NFTA_TRACE_TYPE`, `NFTA_TRACE_VERDICT` and `NFTA_TRACE_POLICY`
const TRACE: u8 = 17;
const TYPE: u16 = 4;
const VERDICT: u16 = 5;
const POLICY_VERDICT: u16 = 16;

/// `NFT_TRACETYPE_POLICY`
const POLICY: u64 = 1;

/// `NF_VERDICT_MASK`; the other bits are the queue's number.
const VERDICT_MASK: u64 = 0xffff_00ff;

/// `NFPROTO_…`
const INET: u8 = 1;
const NETDEV: u8 = 5;
const BRIDGE: u8 = 7;

/// `NF_NETDEV_INGRESS` and `NF_BR_PRE_ROUTING`, which is also `NF_INET_PRE_ROUTING`;
/// `NF_INET_LOCAL_OUT`
const INGRESS: u32 = 0;
const PREROUTING: u32 = 0;
const OUTPUT: u32 = 3;

/// `NFTA_HOOK_DEVS`
const HOOK_LINKS: u16 = 4;

/// Lowest priority, ahead of all others.
const FIRST: i32 = i32::MIN + 1;

/// `NFT_REG_1` and `NFT_META_NFTRACE`
const REGISTER: u32 = 1;
const TRACED: u32 = 12;

/// `NFT_META_L4PROTO` with TCP and UDP, and `NFT_META_PROTOCOL` with ARP.
const MARKED: &[(u32, &[u8])] = &[(16, &[6]), (16, &[17]), (1, &[0x08, 0x06])];

const TABLE: &str = "cni-trace";
