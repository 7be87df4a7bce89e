//! Waits for changes in the kernel: listens to events until a deadline.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use netlink_packet_route::AddressFamily;
use nix::libc::{
    RTM_DELLINK, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWROUTE, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_ROUTE,
    RTNLGRP_LINK,
};

use crate::{Address, Connection, Error, Link, Message, Protocol, ReceiveError, Socket};

/// Waits for changes of links, IPv6 addresses and their local routes in one namespace.
///
/// The monitor's socket receives only events. The monitor reads the current state through a
/// [`Connection`] to the same namespace, because answers on the monitor's socket could be lost: on
/// a busy host, events of other links overflow the socket's buffer.
///
/// A monitor from [`Self::new`] first reads the state. It opens its socket only if it has to wait,
/// which is rare for a veth pair.
///
/// A monitor from [`Self::open`] listens at once. Its [`Self::wait_for_link`] reads the link only
/// if an event is unclear, if events are lost, or if no events arrive. A read would wait for the
/// RTNL lock, which the kernel holds while it brings a link up.
#[derive(Default)]
pub struct Monitor {
    socket: Option<Socket>,
}

/// The link that a monitor waits for, and the longest time to wait.
#[derive(Debug, Clone, Copy)]
pub struct Wait<'a> {
    /// Index of the link.
    pub link: u32,
    /// Awaited change, for the text of [`Error::Timeout`]: `eth0 to come up`.
    pub what: &'a str,
    /// Longest time to wait.
    pub deadline: Duration,
}

/// What an event reveals about the awaited change.
pub(crate) enum Verdict<T> {
    Found(T),
    /// The event may be the awaited change, so the caller has to read the state from the kernel.
    MayBe,
    Nothing,
}

impl Monitor {
    /// Creates a monitor that starts to listen only when it has to wait. It then listens in the
    /// namespace of the thread that waits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a monitor that listens at once, in the calling thread's namespace.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open() -> Result<Self, Error> {
        let socket = Some(open()?);
        Ok(Self { socket })
    }

    /// Waits until `condition` holds for the link in `wait`, and returns the link.
    ///
    /// # Errors
    /// [`Error::Timeout`] with [`Wait::what`], and errors of reading the link.
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
        if self.socket.is_none()
            && let Some(found) = ask()?
        {
            return Ok(found);
        }
        self.wait(wait, ask, |message| {
            // Messages of the family AF_BRIDGE describe the link only as a bridge port. An
            // RTM_NEWLINK of this family lacks most attributes. An RTM_DELLINK of this family only
            // means that the port left its bridge: the link may still exist.
            match (message.kind, message.subject()) {
                (RTM_NEWLINK, Some((AddressFamily::Unspec, index))) if index == wait.link => {
                    let link = Link::from_answer(message).filter(&condition);
                    link.map_or(Verdict::Nothing, Verdict::Found)
                }
                (RTM_DELLINK, Some((AddressFamily::Bridge, _))) => Verdict::Nothing,
                _ => Verdict::of(message, wait.link),
            }
        })
    }

    /// Waits up to `patience` for one event and does not read the state. Returns [`Verdict::Found`]
    /// if the event reports the deletion of the link, and [`Verdict::Nothing`] if another event or
    /// none arrives. Returns [`Verdict::MayBe`] if the monitor may have missed the deletion: the
    /// socket lost events or failed, or the monitor does not listen.
    pub(crate) fn deletion_within(&self, link: u32, patience: Duration) -> Verdict<()> {
        let Some(socket) = &self.socket else {
            return Verdict::MayBe;
        };
        let unlisted = (RTM_DELLINK, Some((AddressFamily::Unspec, link)));
        match socket.notification(patience) {
            Ok(it) if (it.kind, it.subject()) == unlisted => Verdict::Found(()),
            Ok(_) | Err(ReceiveError::Deadline) => Verdict::Nothing,
            Err(_) => Verdict::MayBe,
        }
    }

    /// Waits until `condition` accepts the IPv6 addresses of the link in `wait`, and returns these
    /// addresses.
    ///
    /// # Errors
    /// [`Error::Timeout`] with [`Wait::what`], and errors of reading the addresses.
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
            None => self.wait(wait, ask, |message| Verdict::of(message, wait.link)),
        }
    }

    /// Waits until the kernel has a local route for each IPv6 address in `addresses`, which are
    /// addresses of the link in `wait`.
    ///
    /// The kernel adds the local route of an IPv6 address in the background (`addrconf_dad_work`),
    /// even without duplicate address detection, and drops packets to the address until then. IPv4
    /// addresses need no wait: the kernel adds their local routes together with the addresses.
    ///
    /// # Errors
    /// [`Error::Timeout`] with [`Wait::what`], and errors of looking up the routes.
    pub fn wait_for_local_routes(
        &mut self,
        connection: &Connection,
        wait: &Wait<'_>,
        addresses: &[IpAddr],
    ) -> Result<(), Error> {
        let v6: Vec<_> = addresses.iter().copied().filter(IpAddr::is_ipv6).collect();
        let ask = || Ok(connection.delivers(wait.link, &v6)?.then_some(()));
        if ask()?.is_some() {
            return Ok(());
        }
        // Routing daemons can cause many route events. So a monitor joins the group of these events
        // only when it waits for local routes.
        let joined = self.listening()?.join(RTNLGRP_IPV6_ROUTE);
        joined.map_err(|source| Error::Open { source })?;
        match ask()? {
            Some(()) => Ok(()),
            None => self.wait(wait, ask, |message| {
                let is_of_host = message.destination_length() == Some(IPV6_HOST);
                match message.kind {
                    RTM_NEWROUTE if is_of_host => Verdict::MayBe,
                    _ => Verdict::of(message, wait.link),
                }
            }),
        }
    }

    /// Returns the monitor's socket. Opens the socket if the monitor does not listen yet.
    fn listening(&mut self) -> Result<&Socket, Error> {
        Ok(match &mut self.socket {
            Some(socket) => socket,
            none => none.insert(open()?),
        })
    }

    /// Waits until `judge` or `ask` returns the awaited state, and returns this state. `judge`
    /// examines one event, and `ask` reads the state from the kernel.
    ///
    /// This function calls `judge` with each event. It calls `ask`:
    /// - at the start, if the monitor did not listen before;
    /// - if `judge` returns [`Verdict::MayBe`], or if events are lost;
    /// - after [`SILENCE`] without events, or after [`LONG_SILENCE`] once it has called `ask`;
    /// - before it returns [`Error::Timeout`]. If the whole machine was paused past the deadline, the
    ///   kernel gets [`SILENCE`] to finish the change.
    fn wait<T>(
        &mut self,
        wait: &Wait<'_>,
        ask: impl Fn() -> Result<Option<T>, Error>,
        judge: impl Fn(&Message) -> Verdict<T>,
    ) -> Result<T, Error> {
        let end = Instant::now() + wait.deadline;
        let mut may_be = self.socket.is_none();
        let mut is_over = false;
        let mut patience = SILENCE;
        let socket = self.listening()?;
        loop {
            if may_be || is_over {
                if let Some(found) = ask()? {
                    return Ok(found);
                }
                if is_over {
                    let (what, after) = (wait.what.to_owned(), wait.deadline);
                    return Err(Error::Timeout { what, after });
                }
                patience = LONG_SILENCE;
            }
            let rest = end.saturating_duration_since(Instant::now());
            is_over = rest.is_zero();
            let verdict = socket.notification(patience.min(rest).max(SILENCE));
            may_be = match verdict.map_or(Verdict::MayBe, |message| judge(&message)) {
                Verdict::Found(found) => return Ok(found),
                Verdict::MayBe => true,
                Verdict::Nothing => false,
            };
        }
    }
}

impl Connection {
    /// Waits up to `patience` until the kernel has deleted the link with this index. Returns whether
    /// the link is gone; also returns `false` if the link cannot be read.
    pub fn is_gone_within(&self, link: u32, patience: Duration) -> bool {
        let wait = Wait {
            link,
            what: "a link to be gone",
            deadline: patience,
        };
        let waited = Monitor::new().wait_for_link(self, &wait, |_| false);
        waited.is_err_and(|error| error.is_not_found())
    }
}

impl<T> Verdict<T> {
    /// Returns [`Self::MayBe`] if the event reports that the link with this index changed, was
    /// deleted or got an address. Returns [`Self::Nothing`] for any other event.
    fn of(message: &Message, link: u32) -> Self {
        let is_of_link = message.subject().is_some_and(|(_, index)| index == link);
        match message.kind {
            RTM_NEWLINK | RTM_DELLINK | RTM_NEWADDR if is_of_link => Self::MayBe,
            _ => Self::Nothing,
        }
    }
}

fn open() -> Result<Socket, Error> {
    Connection::to(Protocol::Route, &GROUPS).map(|it| it.socket)
}

/// Multicast groups that a monitor's socket joins when it opens.
const GROUPS: [u32; 2] = [RTNLGRP_LINK, RTNLGRP_IPV6_IFADDR];

/// Prefix length of a route to a single IPv6 address.
const IPV6_HOST: u8 = 128;

/// Time without events after which a monitor that already listens reads the state for the first
/// time. 20 ms are enough for a veth pair: the kernel reports within a millisecond that the pair is
/// up.
const SILENCE: Duration = Duration::from_millis(20);

/// Time without events after which a monitor reads the state again, in case no event reports the
/// awaited change.
const LONG_SILENCE: Duration = Duration::from_secs(1);
