//! Metrics of the devices that containers have, and of those that the kubelet may allocate. The
//! kubelet lists both in its pod resources API.
//!
//! Only the kubelet allocates devices, so its last answer stays true while it does not run. If it
//! does not answer, these metrics keep its last answer and show the age of that answer.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cni::note;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::config::Config;
use super::counters::Counters;
use super::pod_resources::{Known, ask};
use crate::gauges::{Described, number};
use crate::health::Health;

/// Collects the metrics of allocated and allocatable devices. A scrape asks the kubelet again only
/// if the last request is older than [`PERIOD`].
#[derive(Debug)]
pub(crate) struct Allocated {
    socket: PathBuf,
    resources: Vec<String>,
    announced: Counters,
    health: Health,
    answers: Mutex<Answers>,
}

/// The kubelet's last answer, and the time and the failure of the last request.
#[derive(Debug, Default)]
struct Answers {
    asked: Option<Instant>,
    /// The last answer, with its time.
    last: Option<(Instant, Known)>,
    failure: Option<String>,
    /// Resources for which the kubelet's last answer has another number of devices than the agent
    /// announced.
    differing: BTreeMap<String, Difference>,
}

/// The number of allocatable devices that the agent announced, and the number that the kubelet
/// lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Difference {
    announced: i64,
    listed: i64,
}

impl Allocated {
    /// Returns the collector for the resources in `config`. `announced` contains the numbers of
    /// devices that the agent announced.
    pub fn new(config: &Config, announced: Counters, health: Health) -> Self {
        let resources = config.offers.iter().map(|it| it.resource.name.clone());
        Self {
            socket: config.kubelet_dir.join("pod-resources/kubelet.sock"),
            resources: resources.collect(),
            announced,
            health,
            answers: Mutex::default(),
        }
    }

    /// Returns the kubelet's last answer with its age; `None` if the kubelet has never answered.
    /// First asks the kubelet again if the last request is older than [`PERIOD`].
    fn known(&self) -> Option<(Duration, Known)> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.asked.is_none_or(|it| it.elapsed() >= PERIOD) {
            self.refresh(&mut answers);
            answers.asked = Some(Instant::now());
        }
        let last = answers.last.as_ref();
        last.map(|(time, known)| (time.elapsed(), known.clone()))
    }

    fn refresh(&self, answers: &mut Answers) {
        match ask(&self.socket, &self.resources) {
            Ok(known) => {
                self.compare(&known, answers);
                answers.last = Some((Instant::now(), known));
                answers.failure = None;
            }
            Err(error) => {
                let reason = format!("{error:#}");
                if answers.failure.as_ref() != Some(&reason) {
                    note(format_args!(
                        "devices: no list of allocated devices: {reason}"
                    ));
                }
                answers.failure = Some(reason);
            }
        }
    }

    /// Sets the agent's health to failing if the kubelet lists another number of devices of a
    /// resource than the agent announced. After a change, the kubelet may not have read the agent's
    /// new list yet. So a difference counts only if the kubelet's previous answer had the same
    /// difference.
    fn compare(&self, known: &Known, answers: &mut Answers) {
        let Some(listed) = &known.allocatable else {
            return;
        };
        let differing = self.resources.iter().filter_map(|name| {
            let announced = self.announced.healthy(name)?;
            let listed = listed.get(name).copied().unwrap_or_default();
            let difference = Difference { announced, listed };
            (announced != listed).then(|| (name.clone(), difference))
        });
        let differing: BTreeMap<_, _> = differing.collect();
        let lasting = differing
            .iter()
            .filter(|(name, it)| answers.differing.get(*name) == Some(it));
        let lasting: Vec<_> = lasting.map(|(name, it)| it.describe(name)).collect();
        let failure = (!lasting.is_empty()).then(|| lasting.join("; "));
        self.health.set(HEALTH, failure);
        answers.differing = differing;
    }
}

impl Difference {
    fn describe(self, resource: &str) -> String {
        let Self { announced, listed } = self;
        format!(
            "the kubelet may allocate {listed} devices of {resource}, not the {announced} that the \
             agent announced; another device plugin may have registered the resource"
        )
    }
}

impl Collector for Allocated {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some((age, known)) = self.known() else {
            return Ok(());
        };
        Described::counts("allocated_devices", "Devices that a container has")
            .encode(&mut encoder, &known.allocated)?;
        let allocatable = known.allocatable.into_iter().flatten();
        let allocatable = allocatable.map(|(name, count)| (vec![("resource", name)], count));
        let help = "Devices that the kubelet may allocate, as it lists them";
        Described::counts("kubelet_devices", help).encode(&mut encoder, &allocatable.collect())?;
        let help = "Time since the kubelet last listed the devices of containers";
        let (name, unit) = ("allocated_devices_age", Unit::Seconds);
        let mut metric = encoder.encode_descriptor(name, help, Some(&unit), MetricType::Gauge)?;
        metric.encode_gauge(&number(age.as_secs()))
    }
}

/// Shortest time between two requests to the kubelet.
const PERIOD: Duration = Duration::from_secs(3);

/// Name under which the agent's health shows that the kubelet lists another number of devices than
/// the agent announced.
const HEALTH: &str = "devices: kubelet";
