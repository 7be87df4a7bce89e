//! Waits for changes in the kernel by event, with a deadline.

use std::time::{Duration, Instant};

use netlink_packet_route::AddressFamily;
use nix::libc::{RTM_DELLINK, RTM_NEWADDR, RTM_NEWLINK};

use crate::address::Address;
use crate::connection::Connection;
use crate::error::Error;
use crate::link::Link;
use crate::transport::{Event, Group, Transport};

/// Listens to changes of links and IPv6 addresses in one namespace.
///
/// The monitor sends no requests: events of other links overrun its socket on a busy host, and
/// answers would be lost with them. A [`Connection`] to the same namespace asks instead.
///
/// A monitor of [`Self::new`] opens its socket only if the first answer is not yet the awaited one,
/// which is rare for a pair of links. A monitor of [`Self::open`] trusts the events and asks only
/// when none arrive, because a request waits for the lock that the kernel holds while it brings a
/// link up.
pub struct Monitor {
    transport: Option<Transport>,
}

/// The awaited change.
#[derive(Debug, Clone, Copy)]
pub struct Wait<'a> {
    /// Index of the link.
    pub link: u32,
    /// Description for the error: `eth0 to come up`.
    pub what: &'a str,
    /// Longest time to wait.
    pub deadline: Duration,
}

/// What an event means for the awaited change.
enum Verdict<T> {
    Found(T),
    MayBe,
    Nothing,
}

/// What an event means for a link that is being deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The kernel has unlisted it: no process finds it any more.
    Gone,
    /// No event came, or one about another object.
    Nothing,
    /// Events were lost; the awaited one may have been among them.
    Lost,
}

impl Monitor {
    /// Creates a monitor that starts to listen, in the calling thread's namespace, when it has to
    /// wait.
    pub fn new() -> Self {
        Self { transport: None }
    }

    /// Starts to listen in the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open() -> Result<Self, Error> {
        let transport = Some(open()?);
        Ok(Self { transport })
    }

    /// Waits until `condition` holds for the link, and returns the link.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the description of `wait`, and errors of reading the link.
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
            // A bridge's message about a port does not describe the link; a port that leaves is not
            // deleted.
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

    /// Waits for one event for up to `patience`. The event alone decides whether the link is gone.
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

    /// Waits until `condition` holds for the IPv6 addresses of the link, and returns them.
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

    /// Asks after each event that may be the awaited one, and when no event comes for a while. A
    /// monitor that did not listen before also asks at the start.
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

/// Time without events before the monitor asks: the kernel reports that a pair is up within a
/// millisecond.
const SILENCE: Duration = Duration::from_millis(20);
