//! Waiting for the kernel: by event, with a deadline.

use std::time::{Duration, Instant};

use netlink_packet_route::RouteNetlinkMessage;

use crate::address::Address;
use crate::connection::Connection;
use crate::error::Error;
use crate::link::Link;
use crate::transport::Event;

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

impl Connection {
    /// Waits until the link with this index is as `condition` wants it, and returns it.
    ///
    /// The connection must have been opened with [`crate::Events::LinksAndAddresses`]
    /// before the change was asked for, so that no event is missed.
    ///
    /// # Errors
    /// [`Error::Timeout`] in the words of `wait`; whatever reading the link says.
    pub fn wait_for_link(
        &mut self,
        wait: &Wait<'_>,
        condition: impl Fn(&Link) -> bool,
    ) -> Result<Link, Error> {
        self.wait(wait, |connection| {
            let link = connection.link_by_index(wait.link)?;
            Ok(condition(&link).then_some(link))
        })
    }

    /// Waits until the addresses of the link with this index are as `condition` wants
    /// them, and returns them.
    ///
    /// # Errors
    /// As [`Self::wait_for_link`].
    pub fn wait_for_addresses(
        &mut self,
        wait: &Wait<'_>,
        condition: impl Fn(&[Address]) -> bool,
    ) -> Result<Vec<Address>, Error> {
        self.wait(wait, |connection| {
            let addresses = connection.addresses(wait.link)?;
            Ok(condition(&addresses).then_some(addresses))
        })
    }

    /// Asks once, and again after every event that concerns the link or that was lost.
    fn wait<T>(
        &mut self,
        wait: &Wait<'_>,
        ask: impl Fn(&Self) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let end = Instant::now() + wait.deadline;
        loop {
            if let Some(found) = ask(self)? {
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
