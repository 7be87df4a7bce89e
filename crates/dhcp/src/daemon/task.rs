//! The task of an attachment: gets the lease, extends it, and releases it.

use std::cmp::min;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use cni::note;
use netlink::MacAddress;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::exchange::{Exchange, Verdict};
use super::flags::Flags;
use super::interface::{Change, ipv4_routes};
use super::sandbox::{at_interface, is_gone};
use crate::clock::{jittered, now, random};
use crate::lease::Lease;
use crate::message::{Ask, Client, SERVER_PORT};
use crate::record::{Former, Record};
use crate::wire::Answer;

/// An attachment, its record, and its state for clients.
pub(crate) struct Task {
    flags: Arc<Flags>,
    pub owner: String,
    record: Record,
    /// The lease that the interface has, or why the ADD failed.
    lease: watch::Sender<Answer>,
}

impl Task {
    pub(crate) fn new(flags: &Arc<Flags>, record: Record) -> (Self, watch::Receiver<Answer>) {
        let (lease, receiver) = watch::channel(Ok(record.lease.clone()));
        let task = Self {
            flags: Arc::clone(flags),
            owner: record.asked.attachment.owner(),
            record,
            lease,
        };
        (task, receiver)
    }

    /// Lives until the sandbox is proven gone, or the ADD fails. Then releases whatever a server may
    /// have granted.
    pub(crate) async fn run(mut self) {
        let mut obtained = Ok(());
        if !self.record.is_answered {
            obtained = self.obtain().await;
        }
        if obtained.is_ok() {
            self.keep().await;
        }
        cni::note_failure(self.release().await);
        if let Err(error) = obtained {
            self.lease.send_replace(Err(format!("{error:#}"))).ok();
        }
    }

    /// Gets the lease of an ADD, whose caller configures the interface.
    async fn obtain(&mut self) -> anyhow::Result<()> {
        let lease = self.acquire().await?;
        self.record.is_answered = true;
        self.note(format_args!("leased {}", lease.address));
        self.store(Some(lease))
    }

    async fn acquire(&mut self) -> anyhow::Result<Lease> {
        let exchange = Exchange::in_turn(&mut self.record, &self.flags).await?;
        exchange.acquire(&mut self.record).await
    }

    /// Extends the lease until the sandbox is proven gone.
    async fn keep(&mut self) {
        if self.record.lease.is_some() && self.record.offered.is_some() {
            // A killed daemon has begun this change.
            cni::note_failure(self.replace(self.record.offered.clone()).await);
        }
        let mut next = self.renewal();
        while !is_gone(&self.record) {
            if let Some(left) = next.checked_sub(now()).filter(|it| !it.is_zero()) {
                // Timers stop while the host is suspended.
                sleep(min(left, MINUTE)).await;
                continue;
            }
            let deadline = self.deadline();
            next = match self.extend().await {
                Ok(()) => self.renewal(),
                Err(error) => {
                    self.note(format_args!("{error:#}"));
                    now() + self.pause(deadline)
                }
            };
        }
        self.note(format_args!("the sandbox is gone"));
    }

    /// Returns when the lease has to be extended (T1), as the time since boot; 0 without a lease.
    fn renewal(&self) -> Duration {
        let lease = self.record.lease.as_ref();
        lease.map_or(Duration::ZERO, |it| it.renew)
    }

    /// Extends the lease, or gets one if there is none.
    async fn extend(&mut self) -> anyhow::Result<()> {
        let Some(lease) = self.record.lease.clone() else {
            // A killed daemon may have added the address that it requested.
            self.change([self.record.offered.clone(), None]).await?;
            let lease = self.acquire().await?;
            return self.replace(Some(lease)).await;
        };
        let opened = Exchange::in_turn(&mut self.record, &self.flags);
        let opened = timeout(lease.end.saturating_sub(now()), opened).await.ok();
        // On a busy machine, the exchange can be open before the timeout counts.
        let Some(exchange) = opened.filter(|_| now() < lease.end) else {
            self.lose("it has expired").await?;
            // A server may still have the address free.
            self.record.offered = Some(lease);
            return Ok(());
        };
        let (ask, end) = match () {
            () if !lease.is_confirmed() => (Ask::Reboot(&lease), lease.end),
            () if now() < lease.rebind => (Ask::Renew(&lease), lease.rebind),
            () => (Ask::Rebind(&lease), lease.end),
        };
        let patience = min(end.saturating_sub(now()), self.flags.timing.timeout);
        match exchange?.ask(ask, Instant::now() + patience).await? {
            Verdict::Granted(lease) => self.replace(Some(lease)).await,
            Verdict::Refused(reason) => self.lose(&reason).await,
        }
    }

    /// Returns when the lease has to be extended in another way: by any server (T2), or not at all.
    /// `None` if that is unknown, because no server has confirmed the lease yet.
    fn deadline(&self) -> Option<Duration> {
        let lease = self.record.lease.as_ref().filter(|it| it.is_confirmed())?;
        [lease.rebind, lease.end].into_iter().find(|it| *it > now())
    }

    /// Returns the time until the next attempt: half of the time until `deadline` (RFC 2131, 4.4.5),
    /// and all of it at the end.
    fn pause(&self, deadline: Option<Duration>) -> Duration {
        match deadline.map(|it| it.saturating_sub(now())) {
            Some(left) if left <= SHORTEST * 2 => left,
            Some(left) => jittered(left / 2),
            None => jittered(self.flags.timing.resend_max),
        }
    }

    /// Removes the lease from the interface, because the address may be another client's now.
    async fn lose(&mut self, reason: &str) -> anyhow::Result<()> {
        if let Some(lease) = &self.record.lease {
            self.note(format_args!(
                "{} is lost: {reason}; the interface loses it, too",
                lease.address
            ));
        }
        self.replace(None).await
    }

    /// Changes the interface from the former lease to `lease`.
    async fn replace(&mut self, lease: Option<Lease>) -> anyhow::Result<()> {
        let old = self.record.lease.clone();
        let [from, to] = [&old, &lease].map(|it| it.as_ref().map(|it| it.address));
        if from != to {
            let noted = self.record_change(lease.as_ref()).await;
            match lease {
                Some(_) => noted?,
                None => cni::note_failure(noted),
            }
        }
        self.change([old, lease.clone()]).await?;
        if let Some(address) = to.filter(|_| from != to) {
            self.note(format_args!(
                "leased {address}, which the interface has now"
            ));
        }
        self.store(lease)
    }

    /// Notes in the record that the interface is about to get another address, or none, and which
    /// routes it has. If a daemon was killed at this point, they are noted already, and perhaps lost.
    async fn record_change(&mut self, lease: Option<&Lease>) -> anyhow::Result<()> {
        if let Some(old) = self.record.lease.clone()
            && self.record.former.is_none()
        {
            let read = |connection: &_, link: &_| Ok(ipv4_routes(connection, link));
            let routes = at_interface(&mut self.record, read).await?;
            self.record.former = Some(Former { lease: old, routes });
        }
        if let Some(lease) = lease {
            self.record.offered = Some(lease.clone());
        }
        self.record.write(&self.flags.records())
    }

    /// Notes the lease that the interface has.
    fn store(&mut self, lease: Option<Lease>) -> anyhow::Result<()> {
        self.record.offered.take_if(|_| lease.is_some());
        self.record.former.take_if(|_| lease.is_some());
        self.record.lease.clone_from(&lease);
        self.lease.send_replace(Ok(lease)).ok();
        self.record.write(&self.flags.records())
    }

    /// Releases what the attachment has or may have, and removes its record.
    pub(crate) async fn release(&mut self) -> anyhow::Result<()> {
        let leases = [self.record.offered.take(), self.record.lease.take()];
        let mut leases = leases.into_iter().flatten().collect::<Vec<_>>();
        leases.dedup_by_key(|it| it.address.ip());
        for lease in leases {
            let address = lease.address;
            match self.release_one(lease).await {
                Ok(from) => self.note(format_args!("released {address} from {from}")),
                Err(error) => self.note(format_args!("release {address}: {error:#}")),
            }
        }
        self.flags.records().retire(&self.owner).remove()
    }

    /// Sends a RELEASE and removes the address from the interface. If the interface is gone or cannot
    /// send, sends the RELEASE from the host. Returns the sender's name.
    async fn release_one(&mut self, lease: Lease) -> anyhow::Result<&'static str> {
        let is_sent = lease.is_confirmed()
            && match Exchange::open(&mut self.record, &self.flags).await {
                Ok(exchange) => exchange.release(&lease).await.is_ok(),
                Err(_) => false,
            };
        let changed = self.change([Some(lease.clone()), None]).await;
        if is_sent {
            return changed.map(|()| "the interface");
        }
        ensure!(lease.is_confirmed(), "its server is unknown");
        // The interface may be gone, and its address with it.
        self.release_from_host(&lease)?;
        Ok("the host, not from the interface")
    }

    fn release_from_host(&self, lease: &Lease) -> anyhow::Result<()> {
        let mac = self.record.seen.as_ref().map_or([0; 6], |it| it.mac);
        let client = Client {
            asked: self.record.asked.clone(),
            mac: MacAddress(mac),
            broadcast: false,
        };
        let message = client.payload(Ask::Release(lease), random())?;
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.send_to(&message, (lease.server, SERVER_PORT))?;
        Ok(())
    }

    /// Gives the interface what belongs to the second lease, instead of what belongs to the first. A
    /// lease is kept without a route that the kernel refuses.
    async fn change(&mut self, leases: [Option<Lease>; 2]) -> anyhow::Result<()> {
        let change = Change {
            owner: self.owner.clone(),
            leases,
            former: self.record.former.clone(),
            priority: self.record.asked.priority,
        };
        let work = move |connection: &_, link: &_| change.make(connection, link);
        if let Some(error) = at_interface(&mut self.record, work).await? {
            self.note(format_args!("change routes: {error:#}"));
        }
        Ok(())
    }

    fn note(&self, text: std::fmt::Arguments<'_>) {
        note!("{}: {text}", self.owner);
    }
}

/// Shortest wait between two attempts to extend a lease, except at its end.
const SHORTEST: Duration = Duration::from_secs(1);

/// Longest time between two looks at the clock and at the sandbox.
const MINUTE: Duration = Duration::from_mins(1);
