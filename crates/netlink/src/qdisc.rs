//! Reads, sets and deletes qdiscs and classes.
//!
//! This module does not know the purpose of a qdisc or the right size of a token bucket.

use std::fmt;

use netlink_packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_ECHO, NLM_F_REPLACE, Nla, NlasIterator,
};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use nix::libc::{RTM_DELQDISC, RTM_GETQDISC, RTM_GETTCLASS, RTM_NEWQDISC, RTM_NEWTCLASS};

use crate::bucket::number;
use crate::message::values;
use crate::{Connection, Error, FairQueue, HeldBucket, Message, Request, TokenBucket};

/// Number of a qdisc (`1:`) or of a class (`1:2`) on one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    /// Number of the qdisc.
    pub major: u16,
    /// Number of the class; 0 for the qdisc itself.
    pub minor: u16,
}

/// Location of a qdisc or class: its link, its parent and its own handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the link.
    pub link: u32,
    /// Parent of the qdisc or class.
    pub parent: Handle,
    /// Handle of the qdisc or class itself.
    pub handle: Handle,
}

/// A qdisc or class that exists in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qdisc {
    /// Handle; `0:` for the kernel's default qdisc.
    pub handle: Handle,
    /// Kind and parameters.
    pub kind: QdiscKind,
}

/// Kind and parameters of a qdisc or class.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum QdiscKind {
    /// A token bucket filter.
    #[display("tbf")]
    Tbf(HeldBucket),
    /// A hierarchical token bucket: the qdisc or one of its classes.
    #[display("htb")]
    Htb {
        /// Minor number of the class for packets that no filter classifies; 0 if such packets have
        /// no class and no limit. Always 0 if this is a class.
        default: u32,
        /// Token bucket of the class; `None` if this is the qdisc.
        class: Option<HeldBucket>,
    },
    /// An `fq_codel`: one queue for each flow.
    #[display("fq_codel")]
    FqCodel(FairQueue),
    /// Any other kind, by its name in `tc qdisc`, such as `ingress`.
    Other(String),
}

impl Handle {
    /// Handle or parent in a message that names none.
    pub(crate) const NONE: Self = Self::new(0, 0);
    /// Parent of a link's root qdisc, which handles egress.
    pub const ROOT: Self = Self::new(0xffff, 0xffff);
    /// Parent of a link's ingress qdisc, whose kind is `ingress` or `clsact`.
    pub const INGRESS: Self = Self::new(0xffff, 0xfff1);
    /// Parent of the filters for ingress packets, whether the ingress qdisc is `ingress` or
    /// `clsact`.
    pub const INGRESS_FILTERS: Self = Self::new(0xffff, 0xfff2);

    /// Creates the handle `major:minor`.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }
}

impl Place {
    /// Creates the location from the link's index, the parent and the own handle.
    pub const fn new(link: u32, parent: Handle, handle: Handle) -> Self {
        Self {
            link,
            parent,
            handle,
        }
    }
}

impl fmt::Display for Handle {
    /// Formats like `tc`, in hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:", self.major)?;
        match self.minor {
            0 => Ok(()),
            minor => write!(f, "{minor:x}"),
        }
    }
}

impl From<Handle> for TcHandle {
    fn from(handle: Handle) -> Self {
        let mut own = Self::default();
        (own.major, own.minor) = (handle.major, handle.minor);
        own
    }
}

impl From<TcHandle> for Handle {
    fn from(handle: TcHandle) -> Self {
        Self::new(handle.major, handle.minor)
    }
}

impl Request {
    /// Returns a request that creates a token bucket filter or changes the existing one. Equivalent
    /// to `tc qdisc replace … tbf rate … burst … limit …`.
    pub fn set_tbf(place: Place, bucket: &TokenBucket) -> Self {
        Self::set_qdisc(place, "tbf", bucket.tbf_options())
    }

    /// Returns a request that creates a fair queue or changes the existing one. Equivalent to `tc
    /// qdisc replace … fq_codel target … interval … limit … quantum …`.
    pub fn set_fq_codel(place: Place, queue: &FairQueue) -> Self {
        Self::set_qdisc(place, "fq_codel", queue.options())
    }

    fn set_qdisc(place: Place, kind: &str, options: Vec<DefaultNla>) -> Self {
        let operation = format!("set {kind} {} on {}", place.handle, place.parent);
        let message = message(place, kind, options);
        Self::change(operation, RTM_NEWQDISC, &message).with(NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Returns a request that creates a hierarchical token bucket. `default` is the minor number of
    /// the class for packets that no filter classifies; 0 for no class. Equivalent to `tc qdisc add
    /// … htb default …`.
    pub fn add_htb(place: Place, default: u32) -> Self {
        let operation = format!("add htb {} on {}", place.handle, place.parent);
        let message = message(place, "htb", vec![htb_init(default)]);
        Self::create(operation, RTM_NEWQDISC, &message)
    }

    /// Returns a request that creates an HTB class or changes the existing one. Equivalent to `tc
    /// class replace … htb rate … burst … cburst …`.
    pub fn set_htb_class(place: Place, bucket: &TokenBucket) -> Self {
        let message = message(place, "htb", bucket.htb_options());
        let operation = format!("set htb class {}", place.handle);
        Self::change(operation, RTM_NEWTCLASS, &message).with(NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Returns a request that deletes the qdisc at `parent` and all below it. Equivalent to `tc
    /// qdisc delete`.
    pub fn delete_qdisc(link: u32, parent: Handle) -> Self {
        let message = header(link, parent, Handle::NONE);
        Self::change(format!("delete qdisc on {parent}"), RTM_DELQDISC, &message)
    }
}

impl Connection {
    /// Returns the qdisc at `parent` on the link with this index; `None` if the kernel reports
    /// none. Equivalent to `tc qdisc show`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn qdisc(&self, link: u32, parent: Handle) -> Result<Option<Qdisc>, Error> {
        let [found] = self.qdiscs(link, [parent])?;
        Ok(found)
    }

    /// Returns the qdiscs at `parents` on the link with this index, in the order of `parents`;
    /// `None` for a parent for which the kernel reports no qdisc.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn qdiscs<const N: usize>(
        &self,
        link: u32,
        parents: [Handle; N],
    ) -> Result<[Option<Qdisc>; N], Error> {
        let mut found = [const { None }; N];
        let outcomes = self.outcomes(&parents.map(|it| qdisc_request(link, it)))?;
        for (found, outcome) in found.iter_mut().zip(outcomes) {
            *found = match outcome {
                Err(error) if error.is_no_qdisc() => None,
                answers => answers?.iter().find_map(Qdisc::from_answer),
            };
        }
        Ok(found)
    }

    /// Returns the class `handle` of the link with this index; `None` if the class does not exist.
    /// Equivalent to `tc class show`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn class(&self, link: u32, handle: Handle) -> Result<Option<Qdisc>, Error> {
        match self.objects(&[class_request(link, handle)], Qdisc::from_answer) {
            Err(error) if error.is_no_qdisc() => Ok(None),
            found => Ok(found?.into_iter().next()),
        }
    }
}

impl Qdisc {
    pub(crate) fn from_answer(answer: &Message) -> Option<Self> {
        Self::from_message(&Self::message_of(answer)?)
    }

    /// Parses the answer; `None` if it is not about a qdisc or class.
    pub(crate) fn message_of(answer: &Message) -> Option<TcMessage> {
        let qdisc = answer.read(RTM_NEWQDISC);
        qdisc.or_else(|| answer.read(RTM_NEWTCLASS))
    }

    pub(crate) fn from_message(message: &TcMessage) -> Option<Self> {
        let options = options(message);
        let kind = match kind_of(message)? {
            "tbf" => QdiscKind::Tbf(HeldBucket::of_tbf(&options)?),
            "htb" => QdiscKind::Htb {
                default: number(&options, HTB_INIT, DEFAULT_CLASS).unwrap_or_default(),
                class: HeldBucket::of_htb(&options),
            },
            "fq_codel" => QdiscKind::FqCodel(FairQueue::of(&options)?),
            other => QdiscKind::Other(other.to_owned()),
        };
        Some(Self {
            handle: message.header.handle.into(),
            kind,
        })
    }
}

pub(crate) fn qdisc_request(link: u32, parent: Handle) -> Request {
    let message = header(link, parent, Handle::NONE);
    let operation = format!("read qdisc on {parent}");
    one(Request::read(operation, RTM_GETQDISC, &message))
}

/// Returns the request that reads the class `handle` of the link with this index.
pub(crate) fn class_request(link: u32, handle: Handle) -> Request {
    let message = header(link, Handle::NONE, handle);
    let operation = format!("read class {handle}");
    one(Request::read(operation, RTM_GETTCLASS, &message))
}

/// Adds the flags that make the kernel answer a request for one qdisc or class. Before Linux 6.8,
/// the kernel describes the qdisc or class only with `NLM_F_ECHO`. Sometimes the kernel has nothing
/// to describe, for example because the link was never up. With `NLM_F_ACK`, it then sends an
/// acknowledgement, so the caller does not wait in vain.
fn one(request: Request) -> Request {
    request.with(NLM_F_ACK | NLM_F_ECHO)
}

/// Returns a message that names a qdisc or class by its link, its parent and its handle.
pub(crate) fn header(link: u32, parent: Handle, handle: Handle) -> TcMessage {
    // The kernel's indices are positive `int`s, so the conversion never fails.
    let mut message = TcMessage::with_index(i32::try_from(link).unwrap_or(i32::MAX));
    (message.header.parent, message.header.handle) = (parent.into(), handle.into());
    message
}

fn message(place: Place, kind: &str, options: Vec<DefaultNla>) -> TcMessage {
    let mut message = header(place.link, place.parent, place.handle);
    let options = options.into_iter().map(TcOption::Other).collect();
    message.attributes = vec![
        TcAttribute::Kind(kind.to_owned()),
        TcAttribute::Options(options),
    ];
    message
}

/// Returns the kind of a qdisc, class or filter, such as `htb`; `None` if the message contains
/// none.
pub(crate) fn kind_of(message: &TcMessage) -> Option<&str> {
    let mut kinds = values!(&message.attributes, TcAttribute::Kind);
    kinds.next().map(String::as_str)
}

/// Returns the options of a qdisc, class or filter (`TCA_OPTIONS`).
pub(crate) fn parts(message: &TcMessage) -> impl Iterator<Item = &TcOption> {
    values!(&message.attributes, TcAttribute::Options).flatten()
}

/// Returns the attributes inside `TCA_OPTIONS`, each with its number. For most kinds of qdiscs,
/// netlink-packet-route returns all attributes as one byte string, which this function splits. For
/// a few kinds, netlink-packet-route parses each attribute. This function supports one of these
/// kinds, `fq_codel`.
fn options(message: &TcMessage) -> Vec<(u16, Vec<u8>)> {
    let mut found = Vec::new();
    for option in parts(message) {
        let mut nest = vec![0; option.value_len()];
        option.emit_value(&mut nest);
        if let TcOption::FqCodel(_) = option {
            found.push((option.kind(), nest));
            continue;
        }
        let inner = NlasIterator::new(nest.as_slice()).map_while(Result::ok);
        found.extend(inner.map(|it| (it.kind(), it.value().to_owned())));
    }
    found
}

/// Returns the attribute `TCA_HTB_INIT` of a new HTB. It contains `struct tc_htb_glob` of
/// `include/uapi/linux/pkt_sched.h`: version 3, the usual rate-to-quantum ratio, and the default
/// class.
fn htb_init(default: u32) -> DefaultNla {
    let words = [3, 10, default, 0, 0].map(u32::to_ne_bytes);
    DefaultNla::new(HTB_INIT, words.concat())
}

const HTB_INIT: u16 = 2;

/// Offset of the default class in `struct tc_htb_glob`, in bytes.
const DEFAULT_CLASS: usize = 8;
