//! firewalld: accepts packets of those addresses that are sources of a zone.

use std::net::IpAddr;

use anyhow::{Context as _, bail, ensure};

use crate::config::{Backend, Config};
use crate::dbus::{Answer, Bus, Object};

/// Addresses in a zone of firewalld.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sources {
    zone: String,
    addresses: Vec<IpAddr>,
}

impl Sources {
    /// Returns the sources for an attachment with these addresses. Returns `None` if the
    /// configuration does not use firewalld, or leaves it open and firewalld does not run.
    ///
    /// # Errors
    /// The configuration requires firewalld, but it does not run.
    pub fn wanted(config: &Config, addresses: Vec<IpAddr>) -> anyhow::Result<Option<Self>> {
        let is_meant = match config.backend {
            Backend::Iptables => false,
            Backend::Unset => open().is_ok(),
            Backend::Firewalld => open().map(|_| true)?,
        };
        let zone = config.firewalld_zone.clone();
        Ok(is_meant.then_some(Self { zone, addresses }))
    }

    /// Parses the text that [`Self::text`] returned; `None` if it names no zone.
    pub fn read(text: &str) -> Option<Self> {
        let (zone, addresses) = text.split_once('\n')?;
        Some(Self {
            zone: zone.to_owned(),
            addresses: addresses.lines().filter_map(|it| it.parse().ok()).collect(),
        })
    }

    /// Returns the zone and the addresses as text, each on its own line.
    pub fn text(&self) -> String {
        let lines = self.addresses.iter().map(|it| format!("\n{it}"));
        format!("{}{}", self.zone, lines.collect::<String>())
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
    /// firewalld rejects an address that is in another zone, or there is no such zone.
    pub fn add(&self) -> anyhow::Result<()> {
        self.each("addSource", &["ZONE_ALREADY_SET", "ALREADY_ENABLED"])
    }

    /// Removes the addresses from the zone. If firewalld does not run, there is nothing to remove,
    /// because it forgets such sources when it ends.
    ///
    /// # Errors
    /// firewalld rejects the removal of an address.
    pub fn remove(&self) -> anyhow::Result<()> {
        if self.addresses.is_empty() || open().is_err() {
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

    /// Returns a message for each of the addresses that the zone lacks.
    ///
    /// # Errors
    /// firewalld does not answer.
    pub fn differences(&self) -> anyhow::Result<Vec<String>> {
        let mut bus = open()?;
        let mut found = Vec::new();
        for address in &self.addresses {
            let answer = bus.call(ZONES, "querySource", &[&self.zone, &source(*address)]);
            if !answer.context(ASK)?.is_true() {
                found.push(format!("zone {} of firewalld lacks {address}", self.zone));
            }
        }
        Ok(found)
    }

    fn each(&self, method: &str, done: &[&str]) -> anyhow::Result<()> {
        let mut bus = open()?;
        for address in &self.addresses {
            let answer = bus.call(ZONES, method, &[&self.zone, &source(*address)]);
            if let Answer::Error(reason) = answer.context(ASK)?
                && !done.iter().any(|it| reason.contains(it))
            {
                bail!(
                    "firewalld: {method} {address} in zone {}: {reason}",
                    self.zone
                );
            }
        }
        Ok(())
    }
}

/// Connects to the system bus. Fails if firewalld is not on it.
fn open() -> anyhow::Result<Bus> {
    let mut bus = Bus::connect().context("connect to D-Bus for firewalld")?;
    let is_there = bus.has_owner(ZONES.name).context(ASK)?;
    ensure!(is_there, "firewalld does not run");
    Ok(bus)
}

fn source(address: IpAddr) -> String {
    let prefix = if address.is_ipv4() { 32 } else { 128 };
    format!("{address}/{prefix}")
}

const ASK: &str = "ask firewalld over D-Bus";

const ZONES: Object<'_> = Object {
    name: "org.fedoraproject.FirewallD1",
    path: "/org/fedoraproject/FirewallD1",
    interface: "org.fedoraproject.FirewallD1.zone",
};
