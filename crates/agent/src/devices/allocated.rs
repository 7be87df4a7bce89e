//! The metric of devices that containers have, from the kubelet's API of pod resources.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cni::note;
use kubelet::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use kubelet::pod_resources::{ListRequest, ListResponse};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use tokio::runtime::Builder;
use tokio::time::timeout;
use tonic::transport::Endpoint;

use super::config::Config;

/// Asks the kubelet when the metrics are read, at most once in [`PERIOD`].
#[derive(Debug)]
pub(crate) struct Allocated {
    socket: PathBuf,
    resources: Vec<String>,
    answer: Mutex<Answer>,
}

/// The kubelet's last answer.
#[derive(Debug, Default)]
struct Answer {
    time: Option<Instant>,
    counts: Counts,
    failure: Option<String>,
}

/// Numbers of devices by namespace, pod, container and resource.
type Counts = BTreeMap<[String; 4], i64>;

impl Allocated {
    /// Returns the metric of the resources in this configuration.
    pub fn new(config: &Config) -> Self {
        let resources = config.offers.iter().map(|it| it.resource.name.clone());
        Self {
            socket: config.kubelet_dir.join("pod-resources/kubelet.sock"),
            resources: resources.collect(),
            answer: Mutex::default(),
        }
    }

    fn counts(&self) -> Counts {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        if answer.time.is_none_or(|it| it.elapsed() >= PERIOD) {
            let asked = self.ask();
            let failure = asked.as_ref().err().map(|it| format!("{it:#}"));
            if let Some(reason) = failure.as_ref().filter(|_| failure != answer.failure) {
                note(format_args!(
                    "devices: no metric of allocated devices: {reason}"
                ));
            }
            *answer = Answer {
                time: Some(Instant::now()),
                counts: asked.unwrap_or_default(),
                failure,
            };
        }
        answer.counts.clone()
    }

    /// Asks the kubelet in an event loop on a thread of its own: a collector cannot wait for the
    /// agent's event loop, which may be the one that reads the metrics.
    fn ask(&self) -> anyhow::Result<Counts> {
        let listed = thread::scope(|scope| scope.spawn(|| list(&self.socket)).join());
        let listed = listed.map_err(|_| anyhow::anyhow!("the thread panicked"))?;
        Ok(self.count(listed?))
    }

    fn count(&self, listed: ListResponse) -> Counts {
        let mut counts = Counts::new();
        for pod in listed.pods {
            for container in pod.containers {
                for devices in container.devices {
                    if !self.resources.contains(&devices.resource_name) {
                        continue;
                    }
                    let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
                    let of = [
                        namespace,
                        name,
                        container.name.clone(),
                        devices.resource_name,
                    ];
                    let count = i64::try_from(devices.ids.len()).unwrap_or(i64::MAX);
                    *counts.entry(of).or_default() += count;
                }
            }
        }
        counts
    }
}

/// Returns what all containers have.
fn list(socket: &Path) -> anyhow::Result<ListResponse> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let listed = runtime.block_on(timeout(LONGEST_CALL, async {
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()))?;
        let channel = endpoint.connect().await.context("connect")?;
        let client = PodResourcesListerClient::new(channel);
        let mut client = client.max_decoding_message_size(LONGEST_ANSWER);
        let listed = client.list(ListRequest {}).await;
        let listed = listed.map_err(|it| anyhow::anyhow!("{}: {}", it.code(), it.message()))?;
        anyhow::Ok(listed.into_inner())
    }));
    let listed = listed.map_err(|_| anyhow::anyhow!("the kubelet does not answer"));
    listed
        .and_then(|it| it)
        .with_context(|| format!("list by {}", socket.display()))
}

impl Collector for Allocated {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let counts = self.counts();
        if counts.is_empty() {
            return Ok(());
        }
        let help = "Devices that a container has";
        let kind = MetricType::Gauge;
        let mut metric = encoder.encode_descriptor("allocated_devices", help, None, kind)?;
        for ([namespace, pod, container, resource], count) in &counts {
            let labels = [
                ("namespace", namespace.as_str()),
                ("pod", pod),
                ("container", container),
                ("resource", resource),
            ];
            metric.encode_family(&labels)?.encode_gauge(count)?;
        }
        Ok(())
    }
}

/// The age up to which an answer is used again.
const PERIOD: Duration = Duration::from_secs(3);

/// The longest time of a call to the kubelet.
const LONGEST_CALL: Duration = Duration::from_secs(1);

/// The kubelet's answer for ten thousand devices has less than 1 MiB.
const LONGEST_ANSWER: usize = 16 * 1024 * 1024;
