//! Waiting for the kernel: by event, with a deadline.

use std::time::{Duration, Instant};

use netlink_packet_route::RouteNetlinkMessage;
use netns::Netns;

use crate::address::Address;
use crate::connection::Connection;
use crate::error::Error;
use crate::link::Link;
use crate::transport::{Event, Group, Transport};

/// Hears of changes to links and IPv6 addresses in one namespace.
///
/// It asks nothing: on a busy host the events of others overrun its socket, and what is
/// lost then would be an answer as well. So a [`Connection`] to the same namespace asks.
/// The socket is opened when an answer is not yet the one that is waited for, which with
/// a pair of links is seldom.
pub struct Monitor<'a> {
    namespace: Option<&'a Netns>,
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

impl<'a> Monitor<'a> {
    /// Hears of the calling thread's namespace.
    pub fn new() -> Self {
        Self {
            namespace: None,
            transport: None,
        }
    }

    /// Hears of `namespace`.
    pub fn new_in(namespace: &'a Netns) -> Self {
        Self {
            namespace: Some(namespace),
            transport: None,
        }
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
        self.wait(wait, || {
            let link = connection.link_by_index(wait.link)?;
            Ok(condition(&link).then_some(link))
        })
    }

    /// Waits until the addresses of the link are as `condition` wants them, and returns
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
        self.wait(wait, || {
            let addresses = connection.addresses(wait.link)?;
            Ok(condition(&addresses).then_some(addresses))
        })
    }

    /// Asks, again once it listens, and again after every event that concerns the link or
    /// that was lost.
    fn wait<T>(
        &mut self,
        wait: &Wait<'_>,
        ask: impl Fn() -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        if let Some(found) = ask()? {
            return Ok(found);
        }
        let end = Instant::now() + wait.deadline;
        let transport = self.listen()?;
        let mut may_have_changed = true;
        loop {
            if may_have_changed && let Some(found) = ask()? {
                return Ok(found);
            }
            let rest = end.saturating_duration_since(Instant::now());
            let event = transport.next_event(rest).ok_or_else(|| wait.timeout())?;
            may_have_changed = concerns(&event, wait.link);
        }
    }

    fn listen(&mut self) -> Result<&mut Transport, Error> {
        let transport = match self.transport.take() {
            Some(transport) => transport,
            None => match self.namespace {
                Some(namespace) => namespace.run(open)??,
                None => open()?,
            },
        };
        Ok(self.transport.insert(transport))
    }
}

impl Default for Monitor<'_> {
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

fn concerns(event: &Event, link: u32) -> bool {
    match event {
        Event::Lost => true,
        Event::Told(
            RouteNetlinkMessage::NewLink(message) | RouteNetlinkMessage::DelLink(message),
        ) => message.header.index == link,
        Event::Told(RouteNetlinkMessage::NewAddress(message)) => message.header.index == link,
        Event::Told(_) => false,
    }
}
