//! Number and state of the devices of all resources, which depend on the uplink.

use anyhow::{Context as _, bail};
use tokio::sync::watch;

use super::config::{Config, Offer};
use super::counters::Counters;
use super::plugin::Plugin;
use super::resource::{DeviceState, Kind, TUN};
use super::uplink::{self, State, Uplink};
use crate::health::Health;

/// Number and state of the devices of all resources. Both may depend on the uplink.
pub(crate) struct DeviceStates {
    config: Config,
    uplink: Uplink,
    health: Health,
    counters: Counters,
    /// The number of devices of each resource, in the order of `config.offers`.
    counts: Vec<u32>,
    /// One sender for each resource, in the order of `config.offers`. It passes the number and the
    /// state of the devices to the streams that the kubelet reads.
    senders: Vec<watch::Sender<DeviceState>>,
}

impl DeviceStates {
    /// Computes the number and the state of the devices of all resources. If a number depends on
    /// the uplink's speed, first waits until the uplink has a carrier, because a driver does not
    /// know the speed without one.
    ///
    /// # Errors
    /// The driver does not know the speed. With the uplink's speed, the node would have too many
    /// devices, or a resource would have none. The kernel refuses a netlink socket.
    pub async fn start(
        config: Config,
        mut uplink: Uplink,
        health: Health,
        counters: Counters,
    ) -> anyhow::Result<Self> {
        let (counts, state) = loop {
            let state = uplink.state().await?;
            if let Some(counts) = counts(&config, &uplink, state)? {
                break (counts, state);
            }
            health.set(uplink::HEALTH, uplink.failure(state));
            uplink.changed().await?;
        };
        let senders = counts.iter().map(|_| watch::Sender::default()).collect();
        let states = Self {
            config,
            uplink,
            health,
            counters,
            counts,
            senders,
        };
        states.publish(state);
        Ok(states)
    }

    /// Returns the plugin of each resource.
    pub fn plugins(&self) -> Vec<Plugin> {
        let offers = self.config.offers.iter().zip(&self.senders);
        let plugins = offers.map(|(offer, sender)| {
            Plugin::new(offer.resource.clone(), sender.subscribe(), &self.counters)
        });
        plugins.collect()
    }

    /// Updates the number and the state of the devices whenever the uplink changes. Returns only
    /// with an error.
    ///
    /// # Errors
    /// The kernel refuses a netlink socket.
    pub async fn follow(&mut self) -> anyhow::Result<()> {
        loop {
            let state = self.uplink.state().await?;
            self.update(state);
            self.publish(state);
            self.uplink.changed().await?;
        }
    }

    /// Computes the numbers of devices again. Keeps the old numbers if the speed is unknown now, or
    /// if the new numbers are invalid. Sets the agent's health to failing if pods get no devices.
    fn update(&mut self, state: State) {
        let failure = match counts(&self.config, &self.uplink, state) {
            Ok(counts) => {
                if let Some(counts) = counts {
                    self.counts = counts;
                }
                self.uplink.failure(state)
            }
            Err(error) => Some(format!("{error:#}")),
        };
        self.health.set(uplink::HEALTH, failure);
        let mut kinds = self.config.offers.iter().map(|it| it.resource.kind);
        let lacks_tun = kinds.any(|it| it.is_usable() == Some(false));
        let failure = lacks_tun.then(|| format!("{TUN} is missing: run modprobe tun"));
        self.health.set(TUN_HEALTH, failure);
    }

    /// Passes a changed number or state of devices to the streams that the kubelet reads, and to
    /// the metrics. A stream sends a new list only after such a change.
    fn publish(&self, state: State) {
        let offers = self.config.offers.iter().zip(&self.counts);
        let states = offers.map(|(Offer { resource, .. }, count)| {
            let state = DeviceState {
                count: *count,
                is_healthy: resource.kind.is_usable().unwrap_or(state.has_carrier),
                numa_node: state.numa_node.filter(|_| resource.kind != Kind::Tun),
            };
            (resource.name.as_str(), state)
        });
        let states: Vec<_> = states.collect();
        for (sender, (_, state)) in self.senders.iter().zip(&states) {
            sender.send_if_modified(|it| std::mem::replace(it, *state) != *state);
        }
        self.counters.set(states);
    }
}

/// Returns the number of devices of each resource. Returns `None` if a number depends on the
/// uplink's speed, and the speed is unknown because the uplink has no carrier.
fn counts(config: &Config, uplink: &Uplink, state: State) -> anyhow::Result<Option<Vec<u32>>> {
    let speed = match state.speed {
        _ if !config.needs_speed() => 0,
        Some(speed) => speed,
        None if !state.has_carrier => return Ok(None),
        None => bail!(
            "devices: the driver of {} does not know its speed: set capacityMbit",
            uplink.name()
        ),
    };
    let counts = config.counts(speed).map(Some);
    counts.with_context(|| format!("devices: {}", uplink.name()))
}

/// Name under which the agent's health shows that the device file of tun links is missing.
const TUN_HEALTH: &str = "devices: tun";
