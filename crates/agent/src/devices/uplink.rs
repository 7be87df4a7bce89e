//! The uplink: the link whose capacity pods share. This module finds it, reads its state and waits
//! for changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netlink::{Connection, RouteEvent};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::config::Config;
use crate::events::{Events, route_events};
use crate::health::Health;

/// The uplink's name, and a receiver of the kernel's events about links.
pub(crate) struct Uplink {
    /// The name; `None` if no resource shares the capacity of a link.
    name: Option<String>,
    needs_speed: bool,
    events: Events<RouteEvent>,
}

/// The state of the uplink, on which the number and the state of devices depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    exists: bool,
    /// Whether the link has a carrier.
    pub has_carrier: bool,
    /// The speed of the link in Mbit/s. `None` if no resource needs it, or if the driver does not
    /// know it.
    pub speed: Option<u32>,
    /// The NUMA node of the link's hardware, if it has one.
    pub numa_node: Option<i64>,
}

impl Uplink {
    /// Returns the configured link. If no link is configured, waits for a default route and returns
    /// its link. The uplink has no name if no resource shares the capacity of a link.
    ///
    /// # Errors
    /// The agent cannot open a netlink socket, or the kernel refuses a request.
    pub async fn find(config: &Config, health: &Health) -> anyhow::Result<Self> {
        // Listens to events before it reads the state for the first time, so it misses no change.
        let mut events = route_events()?;
        let name = match &config.uplink {
            _ if !config.needs_uplink() => None,
            Some(name) => Some(name.clone()),
            None => Some(name_by_default_route(&mut events, health).await?),
        };
        Ok(Self {
            name,
            needs_speed: config.needs_speed(),
            events,
        })
    }

    /// Returns the name of the link; an empty text if the uplink has no name.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Returns why pods get no share of the link in this state; `None` if they get it, or if no
    /// resource shares the capacity of a link.
    pub fn failure(&self, state: State) -> Option<String> {
        let name = self.name.as_ref().filter(|_| !state.has_carrier)?;
        Some(if state.exists {
            format!("{name} has no carrier, so pods get no bandwidth")
        } else {
            format!("there is no link {name}, so pods get no bandwidth: set the key uplink")
        })
    }

    /// Returns the current state of the link. Reads it on another thread, because the kernel may
    /// block a thread that reads the speed while links are deleted.
    ///
    /// # Errors
    /// The thread that reads the state panicked.
    pub async fn state(&mut self) -> anyhow::Result<State> {
        let directory = Path::new("/sys/class/net").join(self.name());
        let needs_speed = self.needs_speed;
        Ok(spawn_blocking(move || state(&directory, needs_speed)).await?)
    }

    /// Waits until any link of the node may have changed.
    ///
    /// # Errors
    /// The agent cannot open a netlink socket.
    pub async fn changed(&mut self) -> anyhow::Result<()> {
        changed(&mut self.events).await
    }
}

/// Returns the name of the link of the default route. Waits until a default route exists.
async fn name_by_default_route(
    events: &mut Events<RouteEvent>,
    health: &Health,
) -> anyhow::Result<String> {
    loop {
        if let Some(name) = spawn_blocking(link_of_default_route).await?? {
            return Ok(name);
        }
        let reason = "there is no default route: create one, or name the link by the key uplink";
        health.set(HEALTH, Some(reason.to_owned()));
        changed(events).await?;
    }
}

fn state(directory: &Path, needs_speed: bool) -> State {
    let number = |file: &str| read(directory.join(file));
    let speed = needs_speed.then(|| number("speed")).flatten();
    State {
        exists: directory.exists(),
        // The kernel refuses to read `carrier` of a link that is down.
        has_carrier: number("carrier") == Some(1),
        // `speed` contains -1 if the driver does not know the speed.
        speed: speed.and_then(|it| u32::try_from(it).ok()),
        numa_node: number("device/numa_node").filter(|it| *it >= 0),
    }
}

fn read(path: PathBuf) -> Option<i64> {
    let number = fs::read_to_string(path).ok()?;
    number.trim_end().parse().ok()
}

fn link_of_default_route() -> anyhow::Result<Option<String>> {
    let connection = Connection::open()?;
    let routes = connection.default_routes_in_use()?;
    let link = routes.iter().find_map(|it| it.links().next());
    let link = link.map(|index| connection.link_by_index(index));
    Ok(link.transpose()?.map(|it| it.name))
}

/// Waits until a link or a default route may have changed. If the socket of the events has failed,
/// opens it again instead. Then waits for [`PAUSE`] and drops the events of this pause, so that a
/// burst of events counts as one. Events may be lost, so the caller has to read the whole state
/// again.
async fn changed(events: &mut Events<RouteEvent>) -> anyhow::Result<()> {
    loop {
        match events.recv().await {
            Some(Ok(RouteEvent::Address(_) | RouteEvent::Other)) => {}
            Some(Ok(_)) => break,
            Some(Err(_)) | None => {
                *events = route_events()?;
                break;
            }
        }
    }
    sleep(PAUSE).await;
    while let Ok(Ok(_)) = events.try_recv() {}
    Ok(())
}

/// Name under which the agent's health shows failures that concern the uplink.
pub(crate) const HEALTH: &str = "devices: uplink";

/// The shortest time between two reads of the state if links change all the time.
const PAUSE: Duration = Duration::from_millis(200);
