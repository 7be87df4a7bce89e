//! Reads, adds and deletes policy rules, and finds routing tables that are free.
//!
//! A policy rule chooses the routing table for a packet (ip-rule(8)).

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use nix::libc::{RTM_DELRULE, RTM_GETRULE, RTM_NEWROUTE, RTM_NEWRULE};

use crate::message::values;
use crate::route::list;
use crate::{Connection, Error, IpVersion, LinkKind, Message, Request};

/// A policy rule of IPv4 or IPv6 in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// IP version of the packets.
    pub version: IpVersion,
    /// The packets' source addresses; `None` for all.
    pub from: Option<IpNetwork>,
    /// Number of the routing table; 0 for a rule that chooses none.
    pub table: u32,
    /// The kernel applies the rule with the lowest number first.
    pub priority: u32,
    /// The rule looks up `table` for all packets from `from`, without further conditions.
    pub is_by_source_alone: bool,
}

impl Connection {
    /// Returns the policy rules of both families. Equivalent to `ip rule` and `ip -6 rule`.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::is_not_supported`] holds if the kernel has no policy rules.
    pub fn rules(&self) -> Result<Vec<Rule>, Error> {
        let request = Request::list("read policy rules", RTM_GETRULE, &RuleMessage::default());
        self.objects(&[request], Rule::from_answer)
    }

    /// Returns the numbers, from `first` on, of the routing tables that no VRF link, no route of
    /// either family and none of `rules` uses. The tables `main`, `local` and `default` are never
    /// free.
    ///
    /// # Errors
    /// [`Error::Refused`] and [`Error::Unanswered`].
    pub fn free_tables(
        &self,
        first: u32,
        rules: &[Rule],
    ) -> Result<impl Iterator<Item = u32> + use<>, Error> {
        let lists = IpVersion::ALL.map(|it| list(it, RouteType::Unspec));
        let routes = self.objects(&lists, table_of_route)?.into_iter();
        let links = self.links()?.into_iter().map(|it| it.kind);
        let links = values!(links, LinkKind::Vrf);
        let used = rules.iter().map(|it| it.table);
        let used = used.chain(routes).chain(links).chain(RESERVED);
        let used: BTreeSet<_> = used.collect();
        Ok((first..=u32::MAX).filter(move |it| !used.contains(it)))
    }
}

impl Request {
    /// Returns a request that adds a rule: the kernel looks up `table` for packets from `from`. The
    /// rule precedes the existing rules but that of the table `local`. If it exists, the kernel adds
    /// a second one. Equivalent to `ip rule add from FROM table TABLE`.
    pub fn add_rule(from: IpAddr, table: u32) -> Self {
        let operation = format!("add rule from {from} to table {table}");
        Self::create(operation, RTM_NEWRULE, &rule(from.into(), table))
    }

    /// Returns a request that deletes the rule with this source, table and priority, or the first
    /// one with this source and table. Equivalent to `ip rule delete from FROM table TABLE`.
    pub fn delete_rule(from: IpNetwork, table: u32, priority: Option<u32>) -> Self {
        let mut message = rule(from, table);
        let priority = priority.map(RuleAttribute::Priority);
        message.attributes.extend(priority);
        let operation = format!("delete rule from {from} to table {table}");
        Self::change(operation, RTM_DELRULE, &message)
    }
}

impl Rule {
    /// Reads a rule; `None` for another message, and for rules of other families, such as those of
    /// multicast routing.
    pub(crate) fn from_answer(answer: &Message) -> Option<Self> {
        let message: RuleMessage = answer.read(RTM_NEWRULE)?;
        let header = &message.header;
        let version = match header.family {
            AddressFamily::Inet => IpVersion::V4,
            AddressFamily::Inet6 => IpVersion::V6,
            _ => return None,
        };
        let is_other = header.dst_len != 0
            || header.tos != 0
            || header.action != RuleAction::ToTable
            || header.flags.contains(RuleFlags::Invert);
        let mut rule = Self {
            version,
            from: None,
            table: header.table.into(),
            priority: 0,
            is_by_source_alone: !is_other,
        };
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Source(address) => {
                    rule.from = Some(IpNetwork::new(*address, header.src_len).ok()?);
                }
                RuleAttribute::Table(table) => rule.table = *table,
                RuleAttribute::Priority(priority) => rule.priority = *priority,
                RuleAttribute::Protocol(_) | RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
                _ => rule.is_by_source_alone = false,
            }
        }
        Some(rule)
    }
}

/// Returns the table of a route of any type.
fn table_of_route(answer: &Message) -> Option<u32> {
    let message: RouteMessage = answer.read(RTM_NEWROUTE)?;
    let mut tables = values!(message.attributes, RouteAttribute::Table);
    Some(tables.next().unwrap_or(message.header.table.into()))
}

fn rule(from: IpNetwork, table: u32) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = IpVersion::of(from.ip()).into();
    message.header.src_len = from.prefix();
    message.header.table = table.try_into().unwrap_or_default();
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Source(from.ip()),
        RuleAttribute::Table(table),
    ];
    message
}

/// No table (`RT_TABLE_UNSPEC`), and the tables `default`, `main` and `local`.
const RESERVED: [u32; 4] = [0, 253, 254, 255];
