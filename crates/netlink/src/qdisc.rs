//! Queueing disciplines and classes, as the kernel holds them.
//!
//! Which one serves what, and how large a bucket has to be, is not known here.

use std::fmt;

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_core::{Nla, NlasIterator};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use nix::libc::{RTM_DELQDISC, RTM_GETQDISC, RTM_GETTCLASS, RTM_NEWQDISC, RTM_NEWTCLASS};

use crate::bucket::{HeldBucket, TokenBucket};
use crate::connection::Connection;
use crate::error::Error;
use crate::message::Message;
use crate::request::Request;

/// The number of a queueing discipline (`1:`) or of a class (`1:2`) on one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    /// Of the discipline.
    pub major: u16,
    /// Of the class; 0 for the discipline itself.
    pub minor: u16,
}

/// A queueing discipline of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the link.
    pub link: u32,
    /// What it is attached to.
    pub parent: Handle,
    /// Its own number.
    pub handle: Handle,
}

/// What the kernel holds at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qdisc {
    /// Its number; 0 where the kernel chose the discipline by itself.
    pub handle: Handle,
    /// What it is.
    pub discipline: Discipline,
}

/// A queueing discipline or class.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Discipline {
    /// A token bucket filter.
    Tbf(HeldBucket),
    /// A hierarchy of token buckets, and the class of packets that no filter classifies; 0
    /// for none, which passes them unlimited. A class has no default of its own.
    Htb {
        /// Its minor number.
        default: u32,
        /// The limit, where this is a class.
        class: Option<HeldBucket>,
    },
    /// The hook for arriving packets.
    Ingress,
    /// The hooks for arriving and for leaving packets.
    Clsact,
    /// Any other, as `tc qdisc` names it.
    Other(String),
}

impl Handle {
    /// Where a link's packets leave.
    pub const ROOT: Self = Self::new(0xffff, 0xffff);
    /// Where a link's packets arrive: of [`Discipline::Ingress`] or [`Discipline::Clsact`].
    pub const INGRESS: Self = Self::new(0xffff, 0xfff1);
    /// Where filters for arriving packets are attached, whichever of the two is there.
    pub const ARRIVING: Self = Self::new(0xffff, 0xfff2);

    /// `major:minor`.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for Handle {
    /// As `tc` does, in hexadecimal digits.
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

impl fmt::Display for Discipline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tbf(_) => "tbf",
            Self::Htb { .. } => "htb",
            Self::Ingress => "ingress",
            Self::Clsact => "clsact",
            Self::Other(kind) => kind,
        })
    }
}

impl Request {
    /// Makes a token bucket filter, or changes the one that is there. As `tc qdisc replace
    /// … tbf rate … burst … limit …`.
    pub fn set_tbf(place: Place, bucket: &TokenBucket) -> Self {
        let options = bucket.tbf_options();
        let message = message(place, "tbf", options);
        let message = Message::new(RTM_NEWQDISC, &message);
        let operation = format!("set tbf {} on {}", place.handle, place.parent);
        Self::change(operation, message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Makes a hierarchy of token buckets. As `tc qdisc add … htb default …`.
    pub fn add_htb(place: Place, default: u32) -> Self {
        let message = message(place, "htb", vec![htb_init(default)]);
        let message = Message::new(RTM_NEWQDISC, &message);
        let operation = format!("add htb {} on {}", place.handle, place.parent);
        Self::change(operation, message, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Makes a class of a hierarchy, or changes the one that is there. As `tc class replace …
    /// htb rate … burst … cburst …`.
    pub fn set_htb_class(place: Place, bucket: &TokenBucket) -> Self {
        let message = message(place, "htb", bucket.htb_options());
        let message = Message::new(RTM_NEWTCLASS, &message);
        let operation = format!("set htb class {}", place.handle);
        Self::change(operation, message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Makes the hook for packets that arrive at the link. As `tc qdisc add … ingress`.
    pub fn add_ingress(link: u32) -> Self {
        let place = Place {
            link,
            parent: Handle::INGRESS,
            handle: Handle::new(0xffff, 0),
        };
        let message = Message::new(RTM_NEWQDISC, &message(place, "ingress", vec![]));
        let operation = "add qdisc ingress".to_owned();
        Self::change(operation, message, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Deletes what is attached to `parent`, and all below it. As `tc qdisc delete`.
    pub fn delete_qdisc(link: u32, parent: Handle) -> Self {
        let message = header(link, parent, Handle::new(0, 0));
        let message = Message::new(RTM_DELQDISC, &message);
        Self::change(format!("delete qdisc on {parent}"), message, 0)
    }
}

impl Connection {
    /// What is attached to `parent` on the link with this index, if anything is. As `tc
    /// qdisc show`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn qdisc(&self, link: u32, parent: Handle) -> Result<Option<Qdisc>, Error> {
        let message = header(link, parent, Handle::new(0, 0));
        let message = Message::new(RTM_GETQDISC, &message);
        self.one_discipline(format!("read qdisc on {parent}"), message)
    }

    /// The class `handle` of the link with this index, if there is one. As `tc class show`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn class(&self, link: u32, handle: Handle) -> Result<Option<Qdisc>, Error> {
        let message = header(link, Handle::new(0, 0), handle);
        let message = Message::new(RTM_GETTCLASS, &message);
        self.one_discipline(format!("read class {handle}"), message)
    }

    /// Until Linux 6.8 nothing is answered unless the answer is asked for as an echo. Of a
    /// link that is down there is no answer at all, but for the acknowledgement.
    fn one_discipline(&self, operation: String, message: Message) -> Result<Option<Qdisc>, Error> {
        let request = Request::change(operation, message, NLM_F_ECHO);
        match self.answers(request) {
            Err(error) if error.is_no_qdisc() => Ok(None),
            answers => Ok(answers?.iter().find_map(Qdisc::from_answer)),
        }
    }
}

impl Qdisc {
    pub(crate) fn from_answer(answer: &Message) -> Option<Self> {
        let discipline = answer.read(RTM_NEWQDISC);
        let message: &TcMessage = &discipline.or_else(|| answer.read(RTM_NEWTCLASS))?;
        let kind = message.attributes.iter().find_map(|it| match it {
            TcAttribute::Kind(kind) => Some(kind.as_str()),
            _ => None,
        })?;
        let discipline = match kind {
            "tbf" => Discipline::Tbf(HeldBucket::of_tbf(&options(message))?),
            "htb" => {
                let options = options(message);
                Discipline::Htb {
                    default: htb_default(&options),
                    class: HeldBucket::of_htb(&options),
                }
            }
            "ingress" => Discipline::Ingress,
            "clsact" => Discipline::Clsact,
            other => Discipline::Other(other.to_owned()),
        };
        Some(Self {
            handle: message.header.handle.into(),
            discipline,
        })
    }
}

/// A message about one place, as the kernel names it.
pub(crate) fn header(link: u32, parent: Handle, handle: Handle) -> TcMessage {
    // The kernel's indices are positive ints.
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

/// The attributes inside `TCA_OPTIONS`, which for kinds that it has no type for
/// `netlink-packet-route` hands back in one piece.
fn options(message: &TcMessage) -> Vec<(u16, Vec<u8>)> {
    let nests = message.attributes.iter().filter_map(|it| match it {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    });
    let mut found = Vec::new();
    for option in nests.flatten() {
        let mut nest = vec![0; option.value_len()];
        option.emit_value(&mut nest);
        let inner = NlasIterator::new(nest.as_slice()).map_while(Result::ok);
        found.extend(inner.map(|it| (it.kind(), it.value().to_owned())));
    }
    found
}

/// `TCA_HTB_INIT` with `struct tc_htb_glob` in `include/uapi/linux/pkt_sched.h`: version
/// 3, the usual ratio of rate to quantum, the class by default.
fn htb_init(default: u32) -> DefaultNla {
    let words = [3, 10, default, 0, 0];
    DefaultNla::new(
        HTB_INIT,
        words.into_iter().flat_map(u32::to_ne_bytes).collect(),
    )
}

fn htb_default(options: &[(u16, Vec<u8>)]) -> u32 {
    let init = options.iter().find(|(kind, _)| *kind == HTB_INIT);
    let word = init.and_then(|(_, bytes)| bytes.get(8..)?.first_chunk().copied());
    word.map(u32::from_ne_bytes).unwrap_or_default()
}

const HTB_INIT: u16 = 2;
