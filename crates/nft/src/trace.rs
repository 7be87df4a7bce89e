//! Finds the rules that stop packets, like `nft monitor trace`.
//!
//! Rules that this module creates set the trace mark (`meta nftrace`) of packets. The kernel then
//! reports each rule that such a packet matches.

use std::time::Duration;

use netlink::{Message, ReceiveError, Socket};

use crate::attributes::{Attributes, number, value};
use crate::error::unreceived;
use crate::expression::VERDICT_CODE;
use crate::message::{HOOK_LINKS, HOOK_NUMBER, HOOK_PRIORITY};
use crate::raw::{
    CHAIN_HOOK, CHAIN_NAME, CHAIN_TYPE, ITEM, NEW_CHAIN, NEW_RULE, NEW_TABLE, RULE_CHAIN,
    RULE_EXPRESSIONS, RawMessage, TABLE as TABLE_NAME, TRACE,
};
use crate::watch::listen;
use crate::{Connection, Error, Field, Rule, RulePlace};

/// Receives the kernel's trace reports about packets of one namespace.
pub struct Tracer(Socket);

/// A verdict that ended a packet's path, with the rule or chain that has this verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Location of the rule with the verdict. If the chain's policy decided, the handle is 0.
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
    /// Starts to trace TCP and UDP packets that this namespace receives or sends, and ARP packets
    /// that it receives. At the ingress hook (family `netdev`), only packets on `links` are traced.
    /// The tables that this function creates stay, so no other program should use the namespace.
    ///
    /// # Errors
    /// [`Error::Socket`]. If the kernel refuses a table of one family, packets of that family are
    /// not traced, which is no error.
    pub fn start(connection: &Connection, links: &[&str]) -> Result<Self, Error> {
        let socket = listen(TRACES)?;
        let names = links.iter();
        let names = names.fold(Attributes::new(), |all, it| all.text(ITEM, it));
        let netdev = Attributes::new().nest(HOOK_LINKS, &names);
        for (family, hook, links) in [
            (NETDEV, INGRESS, netdev),
            (BRIDGE, PREROUTING, Attributes::new()),
            (INET, PREROUTING, Attributes::new()),
            (INET, OUTPUT, Attributes::new()),
        ] {
            let messages = marking(family, hook, &links);
            if let Err(error @ Error::Socket { .. }) = connection.create("trace", messages) {
                return Err(error);
            }
        }
        Ok(Self(socket))
    }

    /// Returns where the kernel dropped or queued packets since the last call. Does not wait for
    /// packets.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn ended(&self) -> Result<Vec<Ended>, Error> {
        let mut ended = Vec::new();
        loop {
            match self.0.notification(Duration::ZERO) {
                Ok(report) => ended.extend(Ended::read(&report)),
                Err(ReceiveError::Deadline) => return Ok(ended),
                // Reports were lost because the socket overflowed. That is harmless: a sender
                // without an answer repeats its packet, and the kernel reports on the repeated
                // packet.
                Err(ReceiveError::Lost | ReceiveError::TooLong) => {}
                Err(ReceiveError::Socket(source)) => return Err(unreceived(source)),
            }
        }
    }
}

impl Ended {
    /// Parses a trace report. Returns `None` unless it reports a verdict that drops or queues the
    /// packet.
    fn read(message: &Message) -> Option<Self> {
        let message = &RawMessage::read(message)?;
        let is_policy = message.number(TYPE) == POLICY;
        let of_policy = message.value(POLICY_VERDICT).filter(|_| is_policy);
        let verdict = of_policy.or_else(|| value(message.value(VERDICT)?, VERDICT_CODE))?;
        let verdict = match number(Some(verdict)) & VERDICT_MASK {
            0 => EndVerdict::Drop,
            3 => EndVerdict::Queue,
            _ => return None,
        };
        let mut place = RulePlace::read(message);
        if is_policy {
            place.handle = 0;
        }
        (message.kind == TRACE).then_some(Self { place, verdict })
    }
}

impl RulePlace {
    /// Returns the name of the table's family in nft(8); `?` for an unknown family.
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

/// Returns netlink messages that create a table with one base chain. The rules of the chain set the
/// trace mark of TCP, UDP and ARP packets. The chain runs first at its hook ([`FIRST`]), so a
/// packet has the mark before the chains of other programs see the packet. `links` is the encoded
/// attribute that lists the links of the hook; it is empty for families without this attribute.
fn marking(family: u8, hook: u32, links: &Attributes) -> Vec<RawMessage> {
    let name = format!("{TABLE}-{hook}");
    let table = || Attributes::new().text(TABLE_NAME, &name);
    let hook = Attributes::new()
        .number(HOOK_NUMBER, hook)
        .number(HOOK_PRIORITY, FIRST.cast_unsigned())
        .and(links);
    let chain = table()
        .text(CHAIN_NAME, &name)
        .nest(CHAIN_HOOK, &hook)
        .text(CHAIN_TYPE, "filter");
    let rules = TRACED.iter().map(|(field, value)| {
        let traced = Rule::new("").when(*field, value).traced();
        let rule = table().text(RULE_CHAIN, &name);
        (NEW_RULE, rule.nest(RULE_EXPRESSIONS, &traced.expressions))
    });
    let objects = [(NEW_TABLE, table()), (NEW_CHAIN, chain)];
    let messages = objects.into_iter().chain(rules);
    let messages = messages.map(|(kind, attributes)| RawMessage::new(kind, family, attributes));
    messages.collect()
}

/// Multicast group of the trace reports: `NFNLGRP_NFTRACE`.
const TRACES: u32 = 9;

/// Attributes of a trace report, in this order: `NFTA_TRACE_TYPE`, `NFTA_TRACE_VERDICT` and
/// `NFTA_TRACE_POLICY`.
const TYPE: u16 = 4;
const VERDICT: u16 = 5;
const POLICY_VERDICT: u16 = 16;

/// Type of a trace report about a chain's policy: `NFT_TRACETYPE_POLICY`.
const POLICY: u64 = 1;

/// The bits of a verdict that contain its code: `NF_VERDICT_MASK`. The upper 16 bits are the number
/// of a queue, or the error of a drop.
const VERDICT_MASK: u64 = 0xff;

/// Address families: `NFPROTO_…`.
const INET: u8 = 1;
const NETDEV: u8 = 5;
const BRIDGE: u8 = 7;

/// Hook of the family `netdev`: `NF_NETDEV_INGRESS`.
const INGRESS: u32 = 0;
/// Hook of the families `bridge` and `inet`: `NF_BR_PRE_ROUTING` and `NF_INET_PRE_ROUTING`.
const PREROUTING: u32 = 0;
/// Hook of the family `inet`: `NF_INET_LOCAL_OUT`.
const OUTPUT: u32 = 3;

/// Priority with which the kernel runs the chain before all other chains of the hook.
const FIRST: i32 = i32::MIN + 1;

/// Packets to trace: TCP, UDP and ARP.
const TRACED: [(Field, &[u8]); 3] = [
    (Field::Protocol, &[6]),
    (Field::Protocol, &[17]),
    (Field::EtherType, &[0x08, 0x06]),
];

const TABLE: &str = "cni-trace";
