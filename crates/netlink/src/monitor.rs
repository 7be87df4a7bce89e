//! Waiting for the kernel: by event, with a deadline.

use std::time::{Duration, Instant};

use netlink_packet_route::AddressFamily;
use nix::libc::{RTM_DELLINK, RTM_NEWADDR, RTM_NEWLINK};

use crate::address::Address;
use crate::connection::Connection;
use crate::error::Error;
use crate::link::Link;
use crate::transport::{Event, Group, Transport};

/// Hears of changes to links and IPv6 addresses in one namespace.
///
/// It asks nothing: on a busy host the events of others overrun its socket, and what is
/// lost then would be an answer as well. So a [`Connection`] to the same namespace asks.
/// One of [`Self::new`] opens its socket when an answer is not yet the one that is waited for,
/// which with a pair of links is seldom. One of [`Self::open`] believes what it hears, and asks
/// only when it hears nothing: an answer takes the lock that the kernel holds while it works on
/// a link that comes up.
pub struct Monitor {
    transport: Option<Transport>,
}

/// What is waited for.
#[derive(Debug, Clone, Copy)]
pub struct Wait<'a> {
    /// Index of the link.
    pub link: u32,
    /// In words, for the error: `eth0 to come up`.
    pub what: &'a str,
    /// How long at the most.
    pub deadline: Duration,
}

/// What an event says of what is waited for.
enum Verdict<T> {
    Found(T),
    MayBe,
    Nothing,
}

/// What an event says of a link that is to be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It is gone for everybody.
    Gone,
    /// None came, or one of something else.
    Nothing,
    /// It may have been among events that were lost.
    Lost,
}

impl Monitor {
    /// Hears of the calling thread's namespace when it has to.
    pub fn new() -> Self {
        Self { transport: None }
    }

    /// Hears of the calling thread's namespace from now on.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open() -> Result<Self, Error> {
        let transport = Some(open()?);
        Ok(Self { transport })
    }

    /// Waits until the link is as `condition` wants it, and returns it.
    ///
    /// # Errors
    /// [`Error::Timeout`] in the words of `wait`; whatever reading the link says.
    pub fn wait_for_link(
        &mut self,
        connection: &Connection,
        wait: &Wait<'_>,
        condition: impl Fn(&Link) -> bool,
    ) -> Result<Link, Error> {
        let ask = || {
            let link = connection.link_by_index(wait.link)?;
            Ok(condition(&link).then_some(link))
        };
        if self.transport.is_none()
            && let Some(found) = ask()?
        {
            return Ok(found);
        }
        self.wait(wait, ask, |event| {
            let Event::Told(message) = event else {
                return Verdict::MayBe;
            };
            // What a bridge tells of its ports is no description of the link, nor is a port that leaves gone.
            match (message.kind(), message.subject()) {
                (RTM_NEWLINK, Some((AddressFamily::Unspec, index))) if index == wait.link => {
                    let link = Link::from_answer(message).filter(&condition);
                    link.map_or(Verdict::Nothing, Verdict::Found)
                }
                (RTM_DELLINK, Some((AddressFamily::Bridge, _))) => Verdict::Nothing,
                _ => Verdict::of(event, wait.link),
            }
        })
    }

    /// Waits for an event, so long at the most, and judges whether the link is gone by it alone.
    pub(crate) fn hear_of_end(&mut self, link: u32, patience: Duration) -> Heard {
        let Some(transport) = &mut self.transport else {
            return Heard::Lost;
        };
        match transport.next_event(patience) {
            None => Heard::Nothing,
            Some(Event::Lost) => Heard::Lost,
            Some(Event::Told(message)) => match (message.kind(), message.subject()) {
                (RTM_DELLINK, Some((AddressFamily::Unspec, index))) if index == link => Heard::Gone,
                _ => Heard::Nothing,
            },
        }
    }

    /// Waits until the IPv6 addresses of the link are as `condition` wants them, and returns
    /// them.
    ///
    /// # Errors
    /// As [`Self::wait_for_link`].
    pub fn wait_for_addresses(
        &mut self,
        connection: &Connection,
        wait: &Wait<'_>,
        condition: impl Fn(&[Address]) -> bool,
    ) -> Result<Vec<Address>, Error> {
        let ask = || {
            let addresses = connection.ipv6_addresses(wait.link)?;
            Ok(condition(&addresses).then_some(addresses))
        };
        match ask()? {
            Some(found) => Ok(found),
            None => self.wait(wait, ask, |event| Verdict::of(event, wait.link)),
        }
    }

    /// Asks once it listens, if it did not before, after every event that may be it, and when
    /// there is none for a while.
    fn wait<T>(
        &mut self,
        wait: &Wait<'_>,
        ask: impl Fn() -> Result<Option<T>, Error>,
        judge: impl Fn(&Event) -> Verdict<T>,
    ) -> Result<T, Error> {
        let end = Instant::now() + wait.deadline;
        let mut may_be = self.transport.is_none();
        let mut was_asked = false;
        let transport = match &mut self.transport {
            Some(transport) => transport,
            none => none.insert(open()?),
        };
        loop {
            if may_be {
                if let Some(found) = ask()? {
                    return Ok(found);
                }
                was_asked = true;
            }
            let rest = end.saturating_duration_since(Instant::now());
            let patience = if was_asked { rest } else { rest.min(SILENCE) };
            may_be = match transport.next_event(patience).map(|event| judge(&event)) {
                Some(Verdict::Found(found)) => return Ok(found),
                Some(Verdict::Nothing) => false,
                None if was_asked => return Err(wait.timeout()),
                Some(Verdict::MayBe) | None => true,
            };
        }
    }
}

impl<T> Verdict<T> {
    fn of(event: &Event, link: u32) -> Self {
        let concerned = match event {
            Event::Lost => return Self::MayBe,
            Event::Told(message) => match message.kind() {
                RTM_NEWLINK | RTM_DELLINK | RTM_NEWADDR => message.subject(),
                _ => None,
            },
        };
        match concerned {
            Some((_, index)) if index == link => Self::MayBe,
            _ => Self::Nothing,
        }
    }
}

impl Default for Monitor {
    fn default() -> Self {
        Self::new()
    }
}

impl Wait<'_> {
    fn timeout(&self) -> Error {
        Error::Timeout {
            what: self.what.to_owned(),
            after: self.deadline,
        }
    }
}

fn open() -> Result<Transport, Error> {
    Transport::open(&[Group::Link, Group::Ipv6Address])
}

/// The kernel tells of a pair that comes up within a millisecond.
const SILENCE: Duration = Duration::from_millis(20);
