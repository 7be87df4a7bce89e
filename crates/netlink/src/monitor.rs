//! Waiting for the kernel: by event, with a deadline.

use std::time::{Duration, Instant};

use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::MulticastGroup;

use crate::address::Address;
use crate::connection::Connection;
use crate::error::Error;
use crate::link::Link;
use crate::transport::{Event, Transport};

/// A socket that hears of changes to links and IPv6 addresses in its namespace.
///
/// It asks nothing: on a busy host the events of others overrun it, and what is lost then
/// would be an answer as well. So a [`Connection`] to the same namespace asks.
pub struct Monitor {
    transport: Transport,
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

impl Monitor {
    /// Listens in the calling thread's namespace. Opened before a change is asked for, it
    /// misses nothing of it.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open() -> Result<Self, Error> {
        let groups = [MulticastGroup::Link, MulticastGroup::Ipv6Ifaddr];
        let transport = Transport::open(&groups)?;
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

    /// Asks once, and again after every event that concerns the link or that was lost.
    fn wait<T>(
        &mut self,
        wait: &Wait<'_>,
        ask: impl Fn() -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let end = Instant::now() + wait.deadline;
        loop {
            if let Some(found) = ask()? {
                return Ok(found);
            }
            loop {
                let rest = end.saturating_duration_since(Instant::now());
                match self.transport.next_event(rest) {
                    Some(event) if concerns(&event, wait.link) => break,
                    Some(_) => {}
                    None => {
                        return Err(Error::Timeout {
                            what: wait.what.to_owned(),
                            after: wait.deadline,
                        });
                    }
                }
            }
        }
    }
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
