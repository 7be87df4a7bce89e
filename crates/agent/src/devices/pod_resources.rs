//! Asks the kubelet's pod resources API for devices.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use kubelet::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use kubelet::pod_resources::{AllocatableRequest, ContainerDevices, ListRequest, ListResponse};
use tokio::time::timeout;

use crate::grpc::{connect, refusal};

/// What the kubelet knows about the devices of some resources.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// How many devices each container has, by namespace, pod, container and resource.
    pub allocated: BTreeMap<[String; 4], u64>,
    /// Numbers of devices that the kubelet may allocate, by resource: all that are healthy, whether
    /// or not a container has them. `None` if the kubelet does not list them.
    pub allocatable: Option<BTreeMap<String, u64>>,
}

/// Asks the kubelet for the devices of `resources`.
///
/// # Errors
/// The kubelet does not list the devices of containers within [`LONGEST`].
pub(super) async fn ask(socket: &Path, resources: &[String]) -> anyhow::Result<Known> {
    let known = timeout(LONGEST, call(socket, resources)).await;
    let known = known.unwrap_or_else(|_| bail!("the kubelet does not answer"));
    known.with_context(|| format!("list by {}", socket.display()))
}

async fn call(socket: &Path, resources: &[String]) -> anyhow::Result<Known> {
    let client = PodResourcesListerClient::new(connect(socket).await?);
    let mut client = client.max_decoding_message_size(LONGEST_ANSWER);
    let listed = client.list(ListRequest {}).await;
    let listed = listed.map_err(|it| refusal(&it))?.into_inner();
    // Before Kubernetes 1.28, the feature gate KubeletPodResourcesGetAllocatable may turn this call
    // off.
    let allocatable = client
        .get_allocatable_resources(AllocatableRequest {})
        .await;
    let allocatable = allocatable.ok().map(|it| it.into_inner().devices);
    Ok(Known {
        allocated: allocated(listed, resources),
        allocatable: allocatable.map(|it| allocatable_of(&it, resources)),
    })
}

fn allocated(listed: ListResponse, resources: &[String]) -> BTreeMap<[String; 4], u64> {
    let mut counts = BTreeMap::new();
    for pod in listed.pods {
        for container in pod.containers {
            let devices = container.devices.into_iter();
            for devices in devices.filter(|it| resources.contains(&it.resource_name)) {
                let names = [
                    pod.namespace.clone(),
                    pod.name.clone(),
                    container.name.clone(),
                    devices.resource_name,
                ];
                *counts.entry(names).or_default() += devices.ids.len() as u64;
            }
        }
    }
    counts
}

/// Returns the number of devices of each resource in `resources`: 0 for a resource that the kubelet
/// does not list.
fn allocatable_of(listed: &[ContainerDevices], resources: &[String]) -> BTreeMap<String, u64> {
    let count = |name: &String| {
        let devices = listed.iter().filter(|it| it.resource_name == *name);
        devices.map(|it| it.ids.len() as u64).sum()
    };
    let counts = resources.iter().map(|name| (name.clone(), count(name)));
    counts.collect()
}

/// Time limit for connecting to the kubelet and for both calls together.
const LONGEST: Duration = Duration::from_secs(1);

/// Maximum size of an answer in bytes. The answer for ten thousand devices has less than 1 MiB.
const LONGEST_ANSWER: usize = 16 * 1024 * 1024;
