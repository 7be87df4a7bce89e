//! Adds addresses of containers to a zone of firewalld as sources, and removes them. The zone
//! decides whether firewalld accepts packets from its sources.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use cni::note;
use nft::Family;
use zbus::address::Transport;
use zbus::address::transport::UnixSocket;
use zbus::{Address, Connection, Proxy};
use zruntime::SharedRuntime;

use crate::Config;
use crate::config::Backend;

/// A zone of firewalld, and addresses that this plugin adds to it or removes from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sources {
    zone: String,
    addresses: Vec<IpAddr>,
}

impl Sources {
    /// Returns the sources for an attachment with these addresses. Returns `None` if `backend`
    /// excludes firewalld, or if `backend` is not set and firewalld does not run.
    ///
    /// # Errors
    /// - The configuration requires firewalld, but it does not run.
    /// - The bus does not answer in time, although firewalld seems to run.
    pub fn wanted(config: &Config, addresses: Vec<IpAddr>) -> anyhow::Result<Option<Self>> {
        let is_meant = match config.backend {
            Backend::Iptables | Backend::Nftables => false,
            Backend::Unset => has_bus() && if_answered(ask(async |_| Ok(true)))?,
            Backend::Firewalld => ask(async |_| Ok(true))?,
        };
        let zone = config.firewalld_zone.clone();
        Ok(is_meant.then_some(Self { zone, addresses }))
    }

    /// Returns the sources that another plugin may have added for these addresses, which are in no
    /// record. Returns `None` if `backend` excludes firewalld, or if firewalld does not run.
    ///
    /// # Errors
    /// The bus does not answer in time, although firewalld seems to run.
    pub fn unrecorded(config: &Config, addresses: Vec<IpAddr>) -> anyhow::Result<Option<Self>> {
        if_answered(Self::wanted(config, addresses))
    }

    /// Reads the zone and the addresses from the text of an attachment's record file, which starts
    /// with the result of [`Self::text`] or, if the record lists no sources, with an empty line.
    /// Returns `None` if the text lists no address.
    pub fn read(text: &str) -> Option<Self> {
        let (zone, addresses) = text.split_once('\n')?;
        let addresses = addresses.lines().filter_map(|it| it.parse().ok());
        let addresses: Vec<_> = addresses.collect();
        (!addresses.is_empty()).then(|| Self {
            zone: zone.to_owned(),
            addresses,
        })
    }

    /// Returns the zone and the addresses as text, each on its own line.
    pub fn text(&self) -> String {
        let lines = self.addresses.iter().map(|it| format!("\n{it}"));
        format!("{}{}", self.zone, lines.collect::<String>())
    }

    /// Returns these addresses and those of `listed`, which an earlier ADD or RELOAD recorded.
    ///
    /// # Errors
    /// The addresses of `listed` are in another zone. firewalld keeps an address in one zone only.
    /// A move would first remove the address from the old zone, so the container would be without a
    /// zone for a moment.
    pub fn with(&self, listed: &Self) -> anyhow::Result<Self> {
        ensure!(
            listed.zone == self.zone,
            "the container is in zone {} of firewalld since its first ADD; \
             to move it to zone {}, delete it and add it again",
            listed.zone,
            self.zone
        );
        let mut all = self.clone();
        let others = listed.addresses.iter();
        all.addresses
            .extend(others.filter(|it| !self.addresses.contains(it)));
        Ok(all)
    }

    /// Returns the sources without the addresses of `others`.
    pub fn without(mut self, others: &[Self]) -> Self {
        let is_shared = |it: &IpAddr| others.iter().any(|other| other.addresses.contains(it));
        self.addresses.retain(|it| !is_shared(it));
        self
    }

    /// Adds the addresses to the zone.
    ///
    /// # Errors
    /// - firewalld does not run or does not answer.
    /// - firewalld rejects an address: it is a source of another zone, or the zone does not exist.
    pub fn add(&self) -> anyhow::Result<()> {
        self.each("addSource", &["ZONE_ALREADY_SET", "ALREADY_ENABLED"])
    }

    /// Removes the addresses from the zone. If firewalld does not run, the function does nothing,
    /// because firewalld forgets runtime sources when it ends.
    ///
    /// # Errors
    /// firewalld rejects the removal of an address. Or the bus or firewalld does not answer.
    pub fn remove(&self) -> anyhow::Result<()> {
        if self.addresses.is_empty() || !is_running()? {
            return Ok(());
        }
        self.each(
            "removeSource",
            &[
                "UNKNOWN_SOURCE",
                "NOT_ENABLED",
                "ZONE_CONFLICT",
                "INVALID_ZONE",
            ],
        )
    }

    /// Calls the D-Bus method `method` of firewalld for each of the addresses. An error counts as
    /// success if its text contains a word of `done`. The function stops at the first other error.
    fn each(&self, method: &str, done: &[&str]) -> anyhow::Result<()> {
        ask(async |zones| {
            for address in &self.addresses {
                let source = (&self.zone, source(*address));
                let answer: zbus::Result<String> = zones.call(method, &source).await;
                if let Err(error) = answer
                    && !done.iter().any(|it| error.to_string().contains(it))
                {
                    bail!(
                        "firewalld: {method} {address} in zone {}: {error}",
                        self.zone
                    );
                }
            }
            Ok(())
        })
    }

    /// Returns a message for each of the addresses that the zone lacks.
    ///
    /// # Errors
    /// firewalld does not answer.
    pub fn differences(&self) -> anyhow::Result<Vec<String>> {
        ask(async |zones| {
            let mut found = Vec::new();
            for address in &self.addresses {
                let source = (&self.zone, source(*address));
                let has: bool = zones.call("querySource", &source).await.context(ASK)?;
                if !has {
                    found.push(format!("zone {} of firewalld lacks {address}", self.zone));
                }
            }
            Ok(found)
        })
    }
}

fn source(address: IpAddr) -> String {
    let prefix = if address.is_ipv4() { 32 } else { 128 };
    format!("{address}/{prefix}")
}

/// Connects to firewalld and runs `work` with firewalld's D-Bus interface for zones.
///
/// # Errors
/// There is no system bus, firewalld is not on it, the bus or firewalld does not answer, or `work`
/// fails.
fn ask<T>(work: impl AsyncFnOnce(&Proxy<'_>) -> anyhow::Result<T>) -> anyhow::Result<T> {
    zbus::block_on(in_call(async {
        let bus = connect().await?;
        let advice = "firewalld does not run: start it, or choose another backend";
        ensure!(is_on(&bus).await?, advice);
        let zones = Proxy::new(&bus, NAME, PATH, format!("{NAME}.zone")).await?;
        work(&zones).await
    }))
}

/// Returns the answer to a question about firewalld. Returns the default, which means that firewalld
/// does not run, in two cases:
///
/// - The bus refuses the question, as it may do in a rootless runtime, or firewalld is not on it.
/// - The bus does not answer in time, and `nf_tables` has no table of firewalld.
///
/// # Errors
/// The bus does not answer in time, and `nf_tables` has a table of firewalld.
fn if_answered<T: Default>(answer: anyhow::Result<T>) -> anyhow::Result<T> {
    match answer {
        Err(error) if is_late(&error) => {
            if has_table() {
                return Err(error);
            }
            note!("{error:#}; it seems not to run, because it has no table");
            Ok(T::default())
        }
        Err(_) => Ok(T::default()),
        answer => answer,
    }
}

/// Returns whether `nf_tables` has the table of firewalld, which exists as long as firewalld runs
/// with its default backend.
fn has_table() -> bool {
    let chains = nft::Connection::open().and_then(|it| it.chains(&[Family::Inet]));
    chains.is_ok_and(|it| it.iter().any(|chain| chain.table == "firewalld"))
}

/// Returns whether firewalld runs: `false` if there is no system bus, or if firewalld is not on it.
fn is_running() -> anyhow::Result<bool> {
    if !has_bus() {
        return Ok(false);
    }
    zbus::block_on(in_call(async {
        match Connection::system().await {
            Ok(bus) => is_on(&bus).await,
            Err(error) if is_absence(&error) => Ok(false),
            Err(error) => Err(unconnected(&error)),
        }
    }))
}

/// Returns whether a connection failed because no process listens on the bus's socket.
fn is_absence(error: &zbus::Error) -> bool {
    let zbus::Error::Connection(error, _) = error else {
        return false;
    };
    let absences = [ErrorKind::ConnectionRefused, ErrorKind::NotFound];
    absences.contains(&error.kind())
}

/// Returns whether firewalld has its name on this bus.
async fn is_on(bus: &Connection) -> anyhow::Result<bool> {
    let daemon = Proxy::new(bus, BUS, "/org/freedesktop/DBus", BUS).await?;
    daemon.call("NameHasOwner", &NAME).await.context(ASK)
}

/// Connects to the system bus.
///
/// # Errors
/// The bus's address is invalid, or there is no bus.
pub(crate) async fn connect() -> anyhow::Result<Connection> {
    Connection::system().await.map_err(|it| unconnected(&it))
}

/// Returns the error of a connection as one text, without [`std::error::Error::source`]. The text
/// of zbus already contains the source error, so it would appear twice.
pub(crate) fn unconnected(error: &zbus::Error) -> anyhow::Error {
    anyhow!("connect to D-Bus for firewalld: {error}")
}

/// Returns whether the system bus may exist: `false` if its address is invalid, or if the address
/// names a socket file that does not exist.
fn has_bus() -> bool {
    match Address::system().as_ref().map(Address::transport) {
        Ok(Transport::Unix(unix)) => match unix.path() {
            UnixSocket::File(path) => path.exists(),
            _ => true,
        },
        other => other.is_ok(),
    }
}

/// Runs `work`, a conversation of this call of the plugin, for at most [`PATIENCE`]. After a
/// conversation that took too long, the next ones, such as those of the rollback, get only
/// [`AFTERWARDS`].
async fn in_call<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    static IS_LATE: AtomicBool = AtomicBool::new(false);
    let is_late_already = IS_LATE.load(Ordering::Relaxed);
    let limit = if is_late_already {
        AFTERWARDS
    } else {
        PATIENCE
    };
    let done = in_time(limit, work).await;
    if done.as_ref().is_err_and(is_late) {
        IS_LATE.store(true, Ordering::Relaxed);
    }
    done
}

/// Runs `work` for at most `limit`.
///
/// # Errors
/// `work` fails or takes longer. If it takes longer, the error is an [`io::Error`] of the kind
/// [`ErrorKind::TimedOut`].
pub(crate) async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let done = SharedRuntime::current()?.timeout(limit, work).await;
    done.unwrap_or_else(|_| {
        let reason = format!("firewalld or D-Bus did not answer within {limit:?}");
        Err(io::Error::new(ErrorKind::TimedOut, reason).into())
    })
}

/// Returns whether firewalld or the bus did not answer in time.
fn is_late(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|it| it.kind() == ErrorKind::TimedOut)
}

const ASK: &str = "ask firewalld over D-Bus";

pub(crate) const NAME: &str = "org.fedoraproject.FirewallD1";
pub(crate) const PATH: &str = "/org/fedoraproject/FirewallD1";
const BUS: &str = "org.freedesktop.DBus";

/// Maximum time for one exchange with firewalld, which does not answer while it loads all rules. With
/// the rollback, an ADD takes at most 30 s.
pub(crate) const PATIENCE: Duration = Duration::from_secs(29);

/// Maximum time for an exchange after one that took too long.
const AFTERWARDS: Duration = Duration::from_secs(1);
