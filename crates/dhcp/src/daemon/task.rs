//! The task of an attachment: gets the lease, extends it, and releases it.

use std::cmp::min;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use cni::note;
use netlink::MacAddress;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use super::exchange::{Exchange, Verdict};
use super::flags::Flags;
use super::interface::{Change, ipv4_routes};
use super::sandbox::{Gone, at_interface, look};
use crate::clock::{jittered, now, random};
use crate::lease::Lease;
use crate::message::{Ask, Client, SERVER_PORT};
use crate::record::{Former, Record};

pub(crate) type Released = oneshot::Sender<anyhow::Result<()>>;

/// Takes the outcome of an ADD. It is closed if the client has hung up.
pub(crate) type Added = oneshot::Sender<anyhow::Result<Lease>>;

/// An attachment, its record, and the lease that other tasks see.
pub(crate) struct Task {
    flags: Arc<Flags>,
    pub owner: String,
    record: Record,
    lease: watch::Sender<Option<Lease>>,
    /// The address of a lease that has expired. A server may still have it free.
    expired: Option<Ipv4Addr>,
}

impl Task {
    pub(crate) fn new(
        flags: &Arc<Flags>,
        record: Record,
        lease: watch::Sender<Option<Lease>>,
    ) -> Self {
        Self {
            flags: Arc::clone(flags),
            owner: record.asked.attachment.owner(),
            record,
            lease,
            expired: None,
        }
    }

    /// Lives until the lease is released, the sandbox is proven gone, or the ADD fails. Then releases
    /// whatever a server may have granted.
    pub(crate) async fn run(
        mut self,
        mut requests: mpsc::Receiver<Released>,
        added: Option<Added>,
    ) {
        let (failed, released) = tokio::select! {
            failed = self.live(added) => (failed, None),
            Some(released) = requests.recv() => (None, Some(released)),
        };
        let outcome = self.release().await;
        if let Some((added, error)) = failed {
            added.send(Err(error)).ok();
        }
        match released {
            Some(released) => drop(released.send(outcome)),
            None => self.note_failure(outcome),
        }
    }

    /// Keeps the lease until the sandbox is proven gone. With `added`, first gets a lease, unless the
    /// client hangs up. Returns a failed ADD, and why it failed.
    async fn live(&mut self, added: Option<Added>) -> Option<(Added, anyhow::Error)> {
        if let Some(mut added) = added {
            let obtained = tokio::select! {
                obtained = self.obtain() => obtained,
                () = added.closed() => return None,
            };
            match obtained {
                Err(error) => return Some((added, error)),
                Ok(lease) => added.send(Ok(lease)).ok()?,
            }
        }
        self.keep().await;
        None
    }

    async fn obtain(&mut self) -> anyhow::Result<Lease> {
        let lease = self.acquire().await?;
        self.record.is_answered = true;
        self.store(Some(lease.clone()))?;
        self.note(format_args!("leased {}", lease.address));
        Ok(lease)
    }

    async fn acquire(&mut self) -> anyhow::Result<Lease> {
        let mut exchange = Exchange::in_turn(&mut self.record, &self.flags).await?;
        let end = Instant::now() + self.flags.timing.resend_timeout;
        let (files, record) = (self.flags.records(), &mut self.record);
        let offered = record.offered.as_ref().map(|it| it.address.ip());
        // If the daemon is killed between the server's grant and the next write, the next daemon
        // finds what it has to release.
        let before = |offer: &Lease| {
            record.offered = Some(offer.clone());
            record.write(&files)
        };
        let hint = offered.or(self.expired);
        exchange.acquire(hint, end, before).await
    }

    /// Extends the lease until the sandbox is proven gone.
    async fn keep(&mut self) {
        loop {
            let deadline = self.deadline();
            let mut outcome = self.turn().await;
            if let Err(error) = &outcome
                && !error.is::<Gone>()
            {
                self.note(format_args!("{error:#}"));
                outcome = self.wait(self.pause(deadline)).await;
            }
            if let Err(error) = outcome
                && error.is::<Gone>()
            {
                return self.note(format_args!("the sandbox is gone: {error:#}"));
            }
        }
    }

    /// Waits until the lease has to be extended, and tries that once. Without a lease, gets one.
    async fn turn(&mut self) -> anyhow::Result<()> {
        let Some(lease) = self.record.lease.clone() else {
            // A killed daemon may have added the address that it requested.
            self.change([self.record.offered.clone(), None]).await?;
            let lease = self.acquire().await?;
            return self.replace(Some(lease)).await;
        };
        let until = |time: Duration| anyhow::Ok(time.saturating_sub(now()?));
        let early = until(lease.renew)?;
        if !early.is_zero() {
            return self.wait(early).await;
        }
        let opened = Exchange::in_turn(&mut self.record, &self.flags);
        let opened = timeout(until(lease.end)?, opened).await.ok();
        // On a busy machine, the exchange can be open before the timeout counts.
        let is_over = until(lease.end)?.is_zero();
        let Some(exchange) = opened.filter(|_| !is_over) else {
            self.expired = Some(lease.address.ip());
            return self.lose("it has expired").await;
        };
        let (ask, end) = match () {
            () if !lease.is_confirmed() => (Ask::Reboot(&lease), lease.end),
            () if now()? < lease.rebind => (Ask::Renew(&lease), lease.rebind),
            () => (Ask::Rebind(&lease), lease.end),
        };
        let end = Instant::now() + min(until(end)?, self.flags.timing.timeout);
        match exchange?.ask(ask, end).await? {
            Verdict::Granted(lease) => self.replace(Some(lease)).await,
            Verdict::Refused(reason) => {
                self.expired = None;
                self.lose(&reason).await
            }
        }
    }

    /// Waits. Timers stop while the host is suspended, so this looks at the clock every minute.
    ///
    /// # Errors
    /// [`Gone`]: the sandbox is proven gone meanwhile.
    async fn wait(&self, time: Duration) -> anyhow::Result<()> {
        let end = now()? + time;
        while let Some(left) = end.checked_sub(now()?).filter(|it| !it.is_zero()) {
            sleep(min(left, MINUTE)).await;
            look(&self.record, &self.flags.prefix)?;
        }
        Ok(())
    }

    /// Removes the lease from the interface, because the address may be another client's now.
    async fn lose(&mut self, reason: &str) -> anyhow::Result<()> {
        let address = self.record.lease.as_ref().map(|it| it.address.to_string());
        let address = address.unwrap_or_default();
        self.note(format_args!(
            "{address} is lost: {reason}; the interface loses it, too"
        ));
        self.replace(None).await
    }

    /// Changes the interface from the former lease to `lease`.
    async fn replace(&mut self, lease: Option<Lease>) -> anyhow::Result<()> {
        let old = self.record.lease.clone();
        let address = |it: &Option<Lease>| it.as_ref().map(|it| it.address);
        let is_moved = address(&old) != address(&lease);
        if let Some(old) = old.clone().filter(|_| is_moved) {
            self.save_routes(old).await?;
        }
        self.change([old, lease.clone()]).await?;
        if let Some(lease) = lease.as_ref().filter(|_| is_moved) {
            self.note(format_args!(
                "leased {}, which the interface has now",
                lease.address
            ));
        }
        self.store(lease)
    }

    /// Notes the routes of the interface, which is about to lose `lease`. If a daemon was killed at
    /// this point, they are noted already, and perhaps lost.
    async fn save_routes(&mut self, lease: Lease) -> anyhow::Result<()> {
        if self.record.former.is_none() {
            let read = |connection: &_, link: &_| Ok(ipv4_routes(connection, link));
            let routes = at_interface(&mut self.record, &self.flags.prefix, read).await?;
            self.record.former = Some(Former { lease, routes });
            self.record.write(&self.flags.records())?;
        }
        Ok(())
    }

    /// Notes the lease that the interface has.
    fn store(&mut self, lease: Option<Lease>) -> anyhow::Result<()> {
        self.record.offered = None;
        self.record.former.take_if(|_| lease.is_some());
        self.record.lease.clone_from(&lease);
        self.lease.send_replace(lease);
        self.record.write(&self.flags.records())
    }

    /// Returns when the state of the lease ends: renewing at T2, rebinding with the lease. `None` if
    /// that is unknown, because no server has confirmed the lease yet.
    fn deadline(&self) -> Option<Duration> {
        let lease = self.record.lease.as_ref().filter(|it| it.is_confirmed());
        let (lease, now) = lease.zip(now().ok())?;
        [lease.rebind, lease.end].into_iter().find(|it| *it > now)
    }

    /// Returns the time until the next attempt: half of the time until `deadline` (RFC 2131, 4.4.5),
    /// and all of it at the end.
    fn pause(&self, deadline: Option<Duration>) -> Duration {
        let left = deadline.zip(now().ok());
        match left.map(|(deadline, now)| deadline.saturating_sub(now)) {
            Some(left) if left <= SHORTEST * 2 => left,
            Some(left) => jittered(left / 2),
            None => jittered(self.flags.timing.resend_max),
        }
    }

    /// Releases what the attachment has or may have, and removes its record.
    pub(crate) async fn release(&mut self) -> anyhow::Result<()> {
        let mut leases: Vec<_> = [self.record.offered.take(), self.record.lease.take()].into();
        leases.dedup_by_key(|it| it.as_ref().map(|it| it.address.ip()));
        for lease in leases.into_iter().flatten() {
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
        let is_sent = match Exchange::open(&mut self.record, &self.flags).await {
            Ok(exchange) => !lease.is_confirmed() || exchange.release(&lease).await.is_ok(),
            Err(_) => false,
        };
        let changed = self.change([Some(lease.clone()), None]).await;
        if is_sent {
            return changed.map(|()| "the interface");
        }
        // The interface may be gone, and its address with it.
        self.release_from_host(&lease)?;
        Ok("the host, not from the interface")
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
        if let Some(error) = at_interface(&mut self.record, &self.flags.prefix, work).await? {
            self.note(format_args!("change routes: {error:#}"));
        }
        Ok(())
    }

    fn release_from_host(&self, lease: &Lease) -> anyhow::Result<()> {
        let mac = self.record.seen.as_ref().map_or([0; 6], |it| it.mac);
        let client = Client::of(&self.record.asked, MacAddress(mac));
        let message = client.payload(Ask::Release(lease), random())?;
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.send_to(&message, (lease.server, SERVER_PORT))?;
        Ok(())
    }

    fn note_failure(&self, outcome: anyhow::Result<()>) {
        if let Err(error) = outcome {
            self.note(format_args!("{error:#}"));
        }
    }

    fn note(&self, text: std::fmt::Arguments<'_>) {
        note!("{}: {text}", self.owner);
    }
}

/// Shortest wait between two attempts to extend a lease, except at its end.
const SHORTEST: Duration = Duration::from_secs(1);

const MINUTE: Duration = Duration::from_mins(1);
