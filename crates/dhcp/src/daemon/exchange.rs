//! Questions to a server, and its answers.

use std::cmp::min;
use std::iter;
use std::time::Duration;

use anyhow::{Context as _, bail};
use cni::note;
use dhcproto::v4::MessageType;
use netlink::{LinkChange, LinkKind, Request};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::flags::{Flags, Timing};
use super::sandbox::at_interface;
use super::socket::{self, FrameSocket};
use crate::clock::{jittered, random};
use crate::lease::Lease;
use crate::message::{Ask, Client};
use crate::record::Record;
use crate::reply::Reply;

/// A transaction with the servers of an interface's network.
#[derive(Debug)]
pub(crate) struct Exchange<'f> {
    socket: FrameSocket,
    client: Client,
    flags: &'f Flags,
    number: u32,
    /// `None` without a turn, or after a message that no server has answered in time.
    turn: Option<SemaphorePermit<'static>>,
}

#[derive(Debug)]
pub(crate) enum Verdict {
    /// The server offers or grants the lease.
    Granted(Lease),
    /// The server refuses (NAK), for this reason.
    Refused(String),
}

impl<'f> Exchange<'f> {
    /// Waits for a turn, then does the same as [`Self::open`].
    pub(crate) async fn in_turn(record: &mut Record, flags: &'f Flags) -> anyhow::Result<Self> {
        let turn = TURNS.acquire().await?;
        Ok(Self {
            turn: Some(turn),
            ..Self::open(record, flags).await?
        })
    }

    /// Opens a socket in the sandbox. Brings the interface up if it is down.
    pub(crate) async fn open(record: &mut Record, flags: &'f Flags) -> anyhow::Result<Self> {
        let number = random();
        let opened = at_interface(record, move |connection, link| {
            if !link.is_up {
                connection.execute([Request::change_link(&link.name, &LinkChange::Up)])?;
            }
            let mac = link.mac.context("the interface has no MAC")?;
            let socket = socket::open(link.index, number).context("open a socket for DHCP")?;
            // Links of one master share its MAC, so an answer to this MAC alone reaches none of them.
            Ok((socket, mac, matches!(link.kind, LinkKind::Ipvlan(_))))
        });
        let (socket, mac, is_ipvlan) = opened.await?;
        let client = Client {
            asked: record.asked.clone(),
            mac,
            broadcast: flags.broadcast || is_ipvlan,
        };
        Ok(Self {
            socket: FrameSocket::new(socket)?,
            client,
            flags,
            number,
            turn: None,
        })
    }

    /// Gets a lease, preferably of the address that `record` names. Writes the record before each
    /// request: if the daemon is killed between the server's grant and the next write, the next
    /// daemon finds what it has to release.
    ///
    /// # Errors
    /// No server grants a lease in time, the interface fails, or the record cannot be written.
    pub(crate) async fn acquire(mut self, record: &mut Record) -> anyhow::Result<Lease> {
        let Timing {
            timeout,
            resend_timeout,
            ..
        } = self.flags.timing;
        let end = Instant::now() + resend_timeout;
        let hint = record.offered.as_ref().map(|it| it.address.ip());
        for pause in self.flags.timing.delays() {
            let Verdict::Granted(offer) = self.ask(Ask::Discover(hint), end).await? else {
                continue;
            };
            record.offered = Some(offer.clone());
            record.write(&self.flags.records())?;
            let patience = min(end, Instant::now() + timeout);
            match self.ask(Ask::Select(&offer), patience).await {
                Ok(Verdict::Granted(lease)) => return Ok(lease),
                Ok(Verdict::Refused(reason)) => {
                    let (server, address) = (offer.server, offer.address);
                    self.note(format_args!("{server} refuses {address}: {reason}"));
                }
                Err(error) if patience == end => return Err(error),
                Err(error) => self.note(format_args!("{error:#}")),
            }
            self.turn = None;
            sleep_until(min(end, Instant::now() + pause)).await;
        }
        bail!("no DHCP server answers")
    }

    /// Asks until an answer arrives.
    pub(crate) async fn ask(&mut self, ask: Ask<'_>, end: Instant) -> anyhow::Result<Verdict> {
        let (frame, (_, name)) = (self.client.frame(ask, self.number)?, ask.kind());
        for delay in self.flags.timing.delays() {
            let sent = self.socket.send(&frame).await;
            sent.with_context(|| format!("send {name}"))?;
            let next = min(end, Instant::now() + delay);
            match timeout_at(next, self.verdict(ask)).await {
                Ok(verdict) => return verdict,
                Err(_) if next == end => break,
                Err(_) => self.turn = None,
            }
        }
        bail!("no DHCP server answers {name}")
    }

    /// Sends a RELEASE, which servers do not answer.
    pub(crate) async fn release(&self, lease: &Lease) -> anyhow::Result<()> {
        let frame = self.client.frame(Ask::Release(lease), self.number)?;
        Ok(self.socket.send(&frame).await?)
    }

    /// Receives until a usable answer arrives. Ignores all other frames, and logs one of them.
    async fn verdict(&self, ask: Ask<'_>) -> anyhow::Result<Verdict> {
        let mut is_first = true;
        loop {
            let frame = self.socket.receive().await.context("receive")?;
            let is_mine =
                |it: &Reply<'_>| it.message.xid() == self.number && ask.is_answered_by(it);
            let Some(reply) = Reply::read(&frame).filter(is_mine) else {
                continue;
            };
            if reply.kind() == Some(MessageType::Nak) {
                return Ok(Verdict::Refused(reply.reason()));
            }
            match Lease::read(&reply) {
                Ok(lease) => return Ok(Verdict::Granted(lease)),
                Err(error) if is_first => {
                    is_first = false;
                    let (_, name) = ask.kind();
                    let from = reply.from;
                    self.note(format_args!(
                        "ignored an answer to {name} from {from}: {error:#}"
                    ));
                }
                Err(_) => {}
            }
        }
    }

    fn note(&self, text: std::fmt::Arguments<'_>) {
        note!("{}: {text}", self.client.asked.attachment.owner());
    }
}

impl Timing {
    /// Returns the waits before a message is repeated, as in the Go plugin: about two seconds four
    /// times, then 4, 8, 16 … seconds.
    fn delays(self) -> impl Iterator<Item = Duration> {
        let most = min(self.resend_max, self.timeout);
        let powers = iter::repeat_n(1, 4).chain(2..=16).chain(iter::repeat(16));
        powers.map(move |power| jittered(most.min(Duration::from_secs(1 << power))))
    }
}

/// Turns of the exchanges that run at once, so that hundreds of attachments do not ask together. An
/// exchange gives its turn back when it ends, or when no server has answered a message in time.
static TURNS: Semaphore = Semaphore::const_new(32);
