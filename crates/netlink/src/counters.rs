//! Counters of links and of qdiscs.
//!
//! The kernel starts each counter at zero when it creates the object. Counters of links have 64
//! bits. Drops and overlimits of a qdisc have 32 bits, and start again at zero after an overflow.

use netlink_packet_route::link::Stats64;
use netlink_packet_route::tc::{TcAttribute, TcMessage, TcStats2};
use nix::libc::RTM_GETQDISC;

use crate::attributes::value;
use crate::message::{Bytes, values};
use crate::qdisc::{class_request, header};
use crate::{Connection, Error, Handle, Message, Qdisc, Request};

/// Counters of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Interface index of the link.
    pub link: u32,
    /// Packets that arrived at the link.
    pub received: Counters,
    /// Packets that left through the link, after its qdisc.
    pub sent: Counters,
}

/// Counters of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Total length of the packets in bytes, with their Ethernet headers.
    pub bytes: u64,
    /// Number of packets.
    pub packets: u64,
    /// Number of packets that the link dropped.
    pub dropped: u64,
}

/// A qdisc or a class with its counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedQdisc {
    /// Interface index of the link.
    pub link: u32,
    /// Parent of the qdisc or class.
    pub parent: Handle,
    /// The qdisc or class.
    pub qdisc: Qdisc,
    /// The counters.
    pub counters: QueueCounters,
}

/// Counters of a qdisc or a class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Number of packets that the qdisc or class dropped.
    pub dropped: u32,
    /// How often a packet had to wait because the qdisc or class limits the rate.
    pub overlimits: u32,
    /// Total length of the waiting packets in bytes.
    pub backlog: u32,
}

impl Connection {
    /// Returns the counters of all links. Equivalent to `ip -s link show`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn link_counters(&self) -> Result<Vec<LinkCounters>, Error> {
        let mut message = vec![0; HEADER];
        message.extend(LINK_64_FILTER.to_ne_bytes());
        let request = Request::list("read counters of links", RTM_GETSTATS, &Bytes(message));
        self.objects(&[request], LinkCounters::from_answer)
    }

    /// Returns the qdiscs of all links with their counters. Equivalent to `tc -s qdisc show`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn counted_qdiscs(&self) -> Result<Vec<CountedQdisc>, Error> {
        let all = header(0, Handle::NONE, Handle::NONE);
        let request = Request::list("read qdiscs", RTM_GETQDISC, &all);
        self.objects(&[request], CountedQdisc::from_answer)
    }

    /// Returns the class with this handle on each of `links`, with its counters. `links` are
    /// indexes; links without such a class are left out. Equivalent to `tc -s class show`.
    ///
    /// # Errors
    /// [`Error::Refused`], except for a link or class that does not exist.
    pub fn counted_classes(
        &self,
        links: &[u32],
        handle: Handle,
    ) -> Result<Vec<CountedQdisc>, Error> {
        let requests: Vec<_> = links.iter().map(|it| class_request(*it, handle)).collect();
        let mut classes = Vec::new();
        for outcome in self.outcomes(&requests)? {
            match outcome {
                Err(error) if error.is_no_qdisc() || error.is_not_found() => {}
                answers => classes.extend(answers?.iter().filter_map(CountedQdisc::from_answer)),
            }
        }
        Ok(classes)
    }
}

impl LinkCounters {
    /// Reads the counters from the kernel's answer: `struct if_stats_msg` and the attribute
    /// `IFLA_STATS_LINK_64` (`include/uapi/linux/if_link.h`). Returns `None` if the answer has
    /// another type or lacks this attribute.
    pub(crate) fn from_answer(answer: &Message) -> Option<Self> {
        if answer.kind != RTM_NEWSTATS {
            return None;
        }
        let (_, link) = answer.subject()?;
        let attributes = answer.body.get(HEADER + size_of::<u32>()..)?;
        let counters = Stats64::parse(value(attributes, LINK_64)?).ok()?;
        Some(Self {
            link,
            received: Counters {
                bytes: counters.rx_bytes,
                packets: counters.rx_packets,
                dropped: counters.rx_dropped,
            },
            sent: Counters {
                bytes: counters.tx_bytes,
                packets: counters.tx_packets,
                dropped: counters.tx_dropped,
            },
        })
    }
}

impl CountedQdisc {
    pub(crate) fn from_answer(answer: &Message) -> Option<Self> {
        let message = Qdisc::message_of(answer)?;
        Some(Self {
            link: message.header.index.try_into().ok()?,
            parent: message.header.parent.into(),
            qdisc: Qdisc::from_message(&message)?,
            counters: QueueCounters::of(&message),
        })
    }
}

impl QueueCounters {
    /// Reads the counters from the attribute `TCA_STATS2`; all are 0 if the message lacks them.
    fn of(message: &TcMessage) -> Self {
        let statistics = values!(&message.attributes, TcAttribute::Stats2).flatten();
        let mut queues = values!(statistics, TcStats2::Queue);
        queues.next().map_or_else(Self::default, |queue| Self {
            dropped: queue.drops,
            overlimits: queue.overlimits,
            backlog: queue.backlog,
        })
    }
}

/// Offset in bytes of `filter_mask`, the last field of `struct if_stats_msg`.
const HEADER: usize = 8;

/// `IFLA_STATS_FILTER_BIT(IFLA_STATS_LINK_64)`
const LINK_64_FILTER: u32 = 1;

/// `IFLA_STATS_LINK_64`
const LINK_64: u16 = 1;

// The crate `libc` has these two numbers only for targets with glibc.
const RTM_NEWSTATS: u16 = 92;
const RTM_GETSTATS: u16 = 94;
