//! Uplink: reports changes of the node's uplinks (the links of default routes), and pods whose MTU
//! differs from the MTU of a new pod. It changes nothing.

mod counters;
mod report;

use std::convert::Infallible;
use std::time::Duration;

use anyhow::Context as _;
use netlink::RouteEvent;
use serde::Deserialize;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};
use upkeep::Uplinks;

use crate::defaults::yes;
use crate::events::{Events, route_events};
use crate::retry::Pauses;
use crate::shared::Shared;

pub(crate) use self::counters::Counters;

/// The section `uplink` of the agent's configuration file.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    /// Whether the part `uplink` runs.
    #[serde(default = "yes")]
    pub enabled: bool,
}

/// Reports changes of the node's uplinks until the agent ends. After a failure of the netlink
/// socket, opens a new one.
pub(crate) async fn run(shared: Shared, counters: Counters) -> anyhow::Result<()> {
    let mut known = None;
    let mut pauses = Pauses::new();
    loop {
        let Err(error) = follow(&shared, &counters, &mut known).await;
        shared.health.set(PART, Some(format!("{error:#}")));
        pauses.wait().await;
    }
}

/// Reads and reports the uplinks at the start, after each change, and [`RETRY`] after a failed
/// reading. Keeps the last reading in `known`, to compare the next one with it. One thread listens
/// for changes, and at most one other thread reads.
async fn follow(
    shared: &Shared,
    counters: &Counters,
    known: &mut Option<Uplinks>,
) -> anyhow::Result<Infallible> {
    let mut events = route_events()?;
    loop {
        let directories = shared.directories.clone();
        let read = spawn_blocking(move || Uplinks::read(&directories)).await?;
        let failure = read.as_ref().err().map(|error| format!("{error:#}"));
        shared.health.set(PART, failure);
        // After a failed reading, the gauges are absent, because old values may be wrong.
        counters.set(read.as_ref().unwrap_or(&Uplinks::default()));
        let pause = if let Ok(read) = read {
            report::changes(known.as_ref(), &read);
            until_outdated(known.insert(read), &mut events).await?
        } else {
            RETRY
        };
        // Drops the events of the pause, because the next reading covers all of them.
        let end = Instant::now() + pause;
        while let Ok(heard) = timeout_at(end, next(&mut events)).await {
            heard?;
        }
    }
}

/// Waits for an event after which the state in `read` may be wrong. Returns how long the caller
/// should collect further events before it reads the uplinks again.
async fn until_outdated(
    read: &Uplinks,
    events: &mut Events<RouteEvent>,
) -> anyhow::Result<Duration> {
    loop {
        match next(events).await? {
            RouteEvent::Link(link) | RouteEvent::Address(link)
                if read.links.contains_key(&link) =>
            {
                return Ok(SETTLE);
            }
            RouteEvent::DefaultRoute | RouteEvent::Lost => return Ok(SETTLE),
            // A pod that `other_mtu` counts may have ended.
            RouteEvent::Link(_) if !read.other_mtu.is_empty() => return Ok(RECOUNT),
            _ => {}
        }
    }
}

async fn next(events: &mut Events<RouteEvent>) -> anyhow::Result<RouteEvent> {
    let event = events.recv().await;
    event.context("the thread that listens has ended")?
}

const PART: &str = "uplink";

/// Time from the first event until the state is read. A DHCP client makes several changes at once.
const SETTLE: Duration = Duration::from_millis(500);

/// Time from an event of a link that may belong to a pod until the pods are counted again.
const RECOUNT: Duration = Duration::from_secs(10);

/// Pause after a failed reading.
const RETRY: Duration = Duration::from_secs(5);
