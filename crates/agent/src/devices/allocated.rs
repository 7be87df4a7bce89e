//! The metric of devices that containers have, from the kubelet's API of pod resources.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use cni::note;
use kubelet::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use kubelet::pod_resources::{ListRequest, ListResponse};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::client::{connect, refusal};
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
    // A time limit needs the event loop's clock, so it begins inside.
    let listed = runtime.block_on(async { timeout(LONGEST_CALL, call(socket)).await });
    listed
        .unwrap_or_else(|_| bail!("the kubelet does not answer"))
        .with_context(|| format!("list by {}", socket.display()))
}

async fn call(socket: &Path) -> anyhow::Result<ListResponse> {
    let client = PodResourcesListerClient::new(connect(socket).await?);
    let mut client = client.max_decoding_message_size(LONGEST_ANSWER);
    let listed = client.list(ListRequest {}).await;
    Ok(listed.map_err(|it| refusal(&it))?.into_inner())
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kubelet::pod_resources::pod_resources_lister_server::{
        PodResourcesLister, PodResourcesListerServer,
    };
    use kubelet::pod_resources::{
        AllocatableRequest, AllocatableResponse, ContainerDevices, ContainerResources, GetRequest,
        GetResponse, ListRequest, ListResponse, PodResources,
    };
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use tokio::net::UnixListener;
    use tokio_stream::wrappers::UnixListenerStream;
    use tonic::transport::Server;
    use tonic::{Request, Response, Status, async_trait};

    use super::Allocated;

    /// A kubelet with one pod; it counts the questions.
    struct Lister(Arc<AtomicUsize>);

    #[async_trait]
    impl PodResourcesLister for Lister {
        async fn list(&self, _: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let devices = |resource: &str, count: usize| ContainerDevices {
                resource_name: resource.to_owned(),
                ids: vec![String::new(); count],
            };
            let containers = vec![ContainerResources {
                name: "main".to_owned(),
                // The kubelet lists devices of different NUMA nodes apart.
                devices: vec![
                    devices("a/tun", 2),
                    devices("b/gpu", 1),
                    devices("a/tun", 1),
                ],
            }];
            let (namespace, name) = ("default".to_owned(), "web".to_owned());
            let pods = vec![PodResources {
                name,
                namespace,
                containers,
            }];
            Ok(Response::new(ListResponse { pods }))
        }

        async fn get_allocatable_resources(
            &self,
            _: Request<AllocatableRequest>,
        ) -> Result<Response<AllocatableResponse>, Status> {
            Err(Status::unimplemented("unused"))
        }

        async fn get(&self, _: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
            Err(Status::unimplemented("unused"))
        }
    }

    fn metric(socket: PathBuf) -> Registry {
        let mut registry = Registry::with_prefix("cni_agent");
        registry.register_collector(Box::new(Allocated {
            socket,
            resources: vec!["a/tun".to_owned()],
            answer: std::sync::Mutex::default(),
        }));
        registry
    }

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        text
    }

    #[tokio::test]
    async fn the_metric_has_what_the_kubelet_allocated_and_asks_once() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("kubelet.sock");
        let questions = Arc::<AtomicUsize>::default();
        let service = PodResourcesListerServer::new(Lister(Arc::clone(&questions)));
        let listener = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        tokio::spawn(Server::builder().serve_with_incoming(service, listener));
        let registry = metric(socket);
        let read = move || [text(&registry), text(&registry)];
        let texts = tokio::task::spawn_blocking(read).await.unwrap();
        let line = "cni_agent_allocated_devices{namespace=\"default\",pod=\"web\",\
                    container=\"main\",resource=\"a/tun\"} 3\n";
        for text in texts {
            assert!(text.contains(line), "{text}");
            assert!(!text.contains("gpu"), "{text}");
        }
        assert_eq!(questions.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn the_metric_is_absent_without_an_answer() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("kubelet.sock");
        let missing = text(&metric(socket.clone()));
        assert_eq!(missing, "# EOF\n");
        // This reads the metric on the event loop itself.
        let _silent = UnixListener::bind(&socket).unwrap();
        assert_eq!(text(&metric(socket)), "# EOF\n");
    }
}
