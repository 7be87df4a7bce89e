//! Offers the node's bandwidth, and the use of `/dev/net/tun`, to the kubelet as devices. The
//! scheduler then counts these devices when it places pods.
//!
//! A bandwidth device is only a number that the kubelet counts. The plugin `bandwidth`, not this
//! module, limits a pod to the bandwidth of its devices.

mod allocated;
mod answers;
mod config;
mod counters;
mod device_states;
mod directory;
mod plugin;
mod pod_resources;
mod preferred;
mod registration;
mod resource;
mod server;
mod socket;
mod unlimited;
mod uplink;

use self::answers::Answers;
use self::device_states::DeviceStates;
use self::directory::Directory;
use self::registration::Registration;
use self::uplink::Uplink;
use crate::shared::Shared;

pub(crate) use self::allocated::Per;
pub(crate) use self::config::Config;
pub(crate) use self::counters::Counters;

/// Offers the configured resources to the kubelet until the agent ends.
///
/// # Errors
/// - The driver does not know the uplink's speed.
/// - With the uplink's speed, the node would have too many devices, or a resource would have none.
/// - Another agent offers devices on this node.
/// - The kernel refuses a netlink socket.
/// - Events of the kubelet's directory, or changes of mounts, cannot be read.
pub(crate) async fn run(config: Config, shared: Shared, counters: Counters) -> anyhow::Result<()> {
    let health = shared.health.clone();
    let directory = Directory::watch(config.directory(), health.clone()).await?;
    let allocated = counters.allocated.clone();
    let uplink = Uplink::find(&config, &health).await?;
    let mut states = DeviceStates::start(config.clone(), uplink, health.clone(), counters).await?;
    let plugins = states.plugins();
    let mut answers = Answers::new(&config, plugins.clone(), allocated, &shared);
    let mut registration = Registration::new(plugins, health);
    tokio::select! {
        ended = registration.keep(directory) => ended,
        ended = states.follow() => ended,
        ended = answers.follow() => match ended {},
    }
}
