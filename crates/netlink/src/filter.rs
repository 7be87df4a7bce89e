//! Filters (u32) that classify packets. Filters that redirect packets to another link are only read
//! and deleted.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use netlink_packet_route::tc::{
    TcAction, TcActionAttribute, TcActionMirrorOption, TcActionOption, TcAttribute,
    TcFilterU32Option, TcMessage, TcMirrorActionType, TcOption, TcU32Key, TcU32Selector,
    TcU32SelectorFlags,
};
use nix::libc::{RTM_DELTFILTER, RTM_GETTFILTER, RTM_NEWTFILTER};

use crate::message::values;
use crate::qdisc::{header, kind_of, parts};
use crate::{Connection, Error, Handle, Message, Request, octets};

/// Parameters of a u32 filter: of one to be added, or of an existing one ([`HeldFilter`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filter {
    /// Number of the priority. The kernel tries filters with lower numbers first. All filters of
    /// one priority have the same protocol.
    pub priority: u16,
    /// The packets that the filter matches.
    pub packets: Packets,
    /// The class to which the filter assigns the packets that it matches.
    pub class: Handle,
}

/// The packets that a filter or an `IPsec` policy matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum Packets {
    /// All packets of any protocol.
    #[display("all packets")]
    All,
    /// IP packets with a source address within the network.
    #[display("packets from {_0}")]
    From(IpNetwork),
    /// IP packets with a destination address within the network.
    #[display("packets to {_0}")]
    To(IpNetwork),
}

/// A filter as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldFilter {
    /// Handle that identifies the filter among the filters of its priority.
    number: u32,
    /// Number of the priority. The kernel tries filters with lower numbers first.
    pub priority: u16,
    /// The filter's parameters; `None` for a u32 hash table and for a filter that this crate cannot
    /// add.
    pub filter: Option<Filter>,
    /// Index of the link to which the filter redirects the packets that it matches; `None` if it
    /// does not redirect. After a deletion of this link, the kernel reports the index 0 and drops the
    /// packets.
    pub redirect: Option<u32>,
    protocol: u16,
    kind: String,
}

impl Request {
    /// Returns a request that adds a filter to `parent`, a qdisc of the link with this index.
    /// Equivalent to `tc filter add … u32 match … flowid …`.
    pub fn add_filter(link: u32, parent: Handle, filter: &Filter) -> Self {
        let mut message = header(link, parent, Handle::NONE);
        message.header.info = info(filter.priority, filter.packets.protocol());
        let options = filter.options().into_iter().map(TcOption::U32).collect();
        message.attributes = vec![
            TcAttribute::Kind(U32.to_owned()),
            TcAttribute::Options(options),
        ];
        let operation = format!("add filter for {}", filter.packets);
        Self::create(operation, RTM_NEWTFILTER, &message)
    }

    /// Returns a request that deletes one filter of `parent` on the link with this index.
    /// Equivalent to `tc filter delete … handle …`.
    pub fn delete_filter(link: u32, parent: Handle, filter: &HeldFilter) -> Self {
        let mut message = filter.message(link, parent);
        message.header.handle = filter.number.into();
        let operation = format!("delete filter of priority {}", filter.priority);
        Self::change(operation, RTM_DELTFILTER, &message)
    }
}

impl Connection {
    /// Returns the filters of `parent` on the link with this index, in the order in which the
    /// kernel tries them. Equivalent to `tc filter show`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn filters(&self, link: u32, parent: Handle) -> Result<Vec<HeldFilter>, Error> {
        let message = header(link, parent, Handle::NONE);
        let operation = format!("read filters on {parent}");
        let request = Request::list(operation, RTM_GETTFILTER, &message);
        self.objects(&[request], HeldFilter::from_answer)
    }
}

impl HeldFilter {
    /// Returns whether this is a filter. The kernel also lists each priority, with the handle 0, and
    /// the hash tables of u32, whose handles have no number of a filter.
    pub fn is_filter(&self) -> bool {
        let is_u32 = self.kind == U32;
        self.number != 0 && !(is_u32 && self.number & NODE == 0)
    }

    /// Returns a netlink message about all filters that have the priority of this filter. If the
    /// caller adds the handle of a filter, the message is about that filter only.
    fn message(&self, link: u32, parent: Handle) -> TcMessage {
        let mut message = header(link, parent, Handle::NONE);
        message.header.info = info(self.priority, self.protocol);
        message.attributes = vec![TcAttribute::Kind(self.kind.clone())];
        message
    }

    pub(crate) fn from_answer(answer: &Message) -> Option<Self> {
        let message: &TcMessage = &answer.read(RTM_NEWTFILTER)?;
        let options = values!(parts(message), TcOption::U32);
        let [priority, protocol] = halves(message.header.info);
        let protocol = u16::from_be(protocol);
        let (filter, actions) = Filter::read(priority, protocol, options);
        Some(Self {
            number: message.header.handle.into(),
            priority,
            // A filter with an action is none of this crate.
            filter: filter.filter(|_| actions.is_empty()),
            // A redirected packet does not reach further actions, so only the first action matters.
            redirect: actions.first().and_then(redirected_to),
            protocol,
            kind: kind_of(message)?.to_owned(),
        })
    }
}

impl Filter {
    fn options(&self) -> Vec<TcFilterU32Option> {
        vec![
            TcFilterU32Option::ClassId(self.class.into()),
            TcFilterU32Option::Selector(self.packets.selector()),
        ]
    }

    /// Reads the parameters of a u32 filter, and its actions. Returns no parameters for the hash
    /// tables of u32, which have no selector, and for filters that this crate cannot add.
    fn read<'a>(
        priority: u16,
        protocol: u16,
        options: impl IntoIterator<Item = &'a TcFilterU32Option>,
    ) -> (Option<Self>, &'a [TcAction]) {
        let (mut packets, mut class, mut actions) = (None, Handle::NONE, [].as_slice());
        for option in options {
            match option {
                TcFilterU32Option::Selector(it) => packets = Packets::read(protocol, it),
                TcFilterU32Option::ClassId(it) => class = (*it).into(),
                TcFilterU32Option::Action(it) => actions = it,
                _ => {}
            }
        }
        let filter = packets.map(|packets| Self {
            priority,
            packets,
            class,
        });
        (filter, actions)
    }
}

impl Packets {
    fn protocol(self) -> u16 {
        match self {
            Self::All => ETH_P_ALL,
            Self::From(subnet) | Self::To(subnet) if subnet.is_ipv4() => ETH_P_IP,
            Self::From(_) | Self::To(_) => ETH_P_IPV6,
        }
    }

    /// Returns the selector of a u32 filter: the 32-bit words of the packet that the filter
    /// compares, with their masks and their offsets from the start of the IP header.
    fn selector(self) -> TcU32Selector {
        let mut selector = TcU32Selector::default();
        selector.flags = TcU32SelectorFlags::Terminal;
        selector.keys = match self {
            Self::All => vec![TcU32Key::default()],
            Self::From(subnet) => keys(subnet, if subnet.is_ipv4() { 12 } else { 8 }),
            Self::To(subnet) => keys(subnet, if subnet.is_ipv4() { 16 } else { 24 }),
        };
        selector.nkeys = u8::try_from(selector.keys.len()).unwrap_or_default();
        selector
    }

    /// Returns the packets that `selector` matches; `None` if this crate does not build such a
    /// selector.
    fn read(protocol: u16, selector: &TcU32Selector) -> Option<Self> {
        let subnet = subnet(protocol, &selector.keys).into_iter();
        let ends = subnet.flat_map(|it| [Self::From(it), Self::To(it)]);
        let mut all = [Self::All].into_iter().chain(ends);
        all.find(|it| it.protocol() == protocol && it.selector().keys == selector.keys)
    }
}

/// Returns the keys that compare an address with `subnet`, one key for each 32 bits. The address
/// starts `offset` bytes after the start of the IP header.
fn keys(subnet: IpNetwork, offset: i32) -> Vec<TcU32Key> {
    let values = words(subnet.network()).into_iter();
    let offsets = (offset..).step_by(4);
    let keys = values.zip(words(subnet.mask())).zip(offsets);
    let key = |((value, mask), at)| {
        let mut key = TcU32Key::default();
        (key.val, key.mask, key.off) = (value, mask, at);
        key
    };
    keys.map(key).collect()
}

fn words(address: IpAddr) -> Vec<u32> {
    let bytes = octets(address);
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u32::from_be_bytes(*word)).collect()
}

/// Returns the subnet with which `keys` compare an address: the values of the keys form its
/// address, and their masks form its prefix length. Returns `None` if these form no subnet of
/// `protocol`. Even keys that compare something else, such as ports, may form a subnet. So the
/// caller has to compare `keys` with the keys that [`keys()`] returns for the subnet.
fn subnet(protocol: u16, keys: &[TcU32Key]) -> Option<IpNetwork> {
    let mut prefix = 0;
    let mut value = 0_u128;
    for key in keys {
        prefix += key.mask.leading_ones();
        value = value << 32 | u128::from(key.val);
    }
    let address = match protocol {
        ETH_P_IP => IpAddr::V4(u32::try_from(value).ok()?.into()),
        _ => IpAddr::V6(value.into()),
    };
    IpNetwork::new(address, u8::try_from(prefix).ok()?).ok()
}

/// Returns the index of the link to which the action redirects packets; `None` for another action.
fn redirected_to(action: &TcAction) -> Option<u32> {
    let options = values!(&action.attributes, TcActionAttribute::Options).flatten();
    let mirrors = values!(options, TcActionOption::Mirror);
    let mut mirrors = values!(mirrors, TcActionMirrorOption::Parms);
    let redirection = mirrors.find(|it| it.eaction == TcMirrorActionType::EgressRedir);
    redirection.map(|it| it.ifindex)
}

/// Returns `tcm_info` of `struct tcmsg`: the priority, and the protocol in network byte order.
fn info(priority: u16, protocol: u16) -> u32 {
    u32::from(priority) << 16 | u32::from(protocol.to_be())
}

fn halves(info: u32) -> [u16; 2] {
    [info >> 16, info & 0xffff].map(|half| u16::try_from(half).unwrap_or_default())
}

const U32: &str = "u32";

/// The bits of the handle of a u32 filter with its number in its hash table (`TC_U32_NODE` in
/// `include/uapi/linux/pkt_cls.h`).
const NODE: u32 = 0xfff;

/// Protocols of the packets that a filter matches (`include/uapi/linux/if_ether.h`).
const ETH_P_ALL: u16 = 0x0003;
const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_is_read_as_it_was_asked_for() {
        let subnets = [
            "0.0.0.0/0",
            "10.1.0.0/20",
            "192.0.2.1/32",
            "::/0",
            "fd00:1::/65",
        ];
        let subnets = subnets.map(|it| it.parse().unwrap());
        let sides = subnets.map(|it| [Packets::From(it), Packets::To(it)]);
        for packets in sides.into_iter().flatten().chain([Packets::All]) {
            let filter = Filter {
                priority: 9,
                packets,
                class: Handle::new(1, 2),
            };
            let options = filter.options();
            let (read, _) = Filter::read(9, packets.protocol(), &options);
            assert_eq!(read, Some(filter));
        }
    }
}
