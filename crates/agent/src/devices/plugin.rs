//! The gRPC service that offers the devices of one resource to the kubelet.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use kubelet::device_plugin::device_plugin_server::DevicePlugin;
use kubelet::device_plugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse,
};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::sleep;
use tonic::{Request, Response, Status, async_trait};

use super::counters::Counters;
use super::preferred::choose;
use super::resource::{DeviceState, Resource};

/// The device plugin of one resource. The kubelet calls it for a list of the resource's devices,
/// and before it gives devices to a container. Clones share the devices.
#[derive(Debug, Clone)]
pub(crate) struct Plugin {
    /// The resource.
    pub resource: Resource,
    state: watch::Receiver<DeviceState>,
    /// Has a receiver for each open stream of device lists. [`Self::end_streams`] sends a value, which
    /// ends them.
    streams: Arc<watch::Sender<()>>,
    /// Notified of each new stream.
    opened: Arc<Notify>,
    /// A permit for each connection that may be open.
    pub places: Arc<Semaphore>,
    /// The registrations that the kubelet accepted.
    pub registrations: Counter,
    allocations: Counter,
}

/// The optional calls that the kubelet may make to each plugin.
pub(crate) const OPTIONS: DevicePluginOptions = DevicePluginOptions {
    pre_start_required: false,
    get_preferred_allocation_available: true,
};

impl Plugin {
    /// Returns the device plugin of a resource. `state` provides the number and the state of the
    /// devices.
    pub fn new(
        resource: Resource,
        state: watch::Receiver<DeviceState>,
        counters: &Counters,
    ) -> Self {
        Self {
            registrations: counters.registrations(&resource.name),
            allocations: counters.allocations(&resource.name),
            resource,
            state,
            streams: Arc::default(),
            opened: Arc::default(),
            places: Arc::new(Semaphore::new(MOST_CONNECTIONS)),
        }
    }

    /// Returns whether the kubelet reads the list of devices.
    pub fn is_read(&self) -> bool {
        self.streams.receiver_count() > 0
    }

    /// Waits until the kubelet reads the list of devices. Only one task may wait.
    pub async fn until_read(&self) {
        while !self.is_read() {
            self.opened.notified().await;
        }
    }

    /// Waits until the kubelet has not read the list of devices for [`GRACE`]. The kubelet may end
    /// a stream and connect again within this time.
    pub async fn until_unread(&self) {
        loop {
            self.streams.closed().await;
            sleep(GRACE).await;
            if !self.is_read() {
                return;
            }
        }
    }

    /// Returns the number of devices that the kubelet may allocate by the agent's last list.
    pub fn announced(&self) -> u64 {
        let state = *self.state.borrow();
        if state.is_healthy {
            state.count.into()
        } else {
            0
        }
    }

    /// Ends all streams in which the kubelet reads lists of devices. The kubelet does not open them
    /// again by itself: the agent has to register.
    pub fn end_streams(&self) {
        self.streams.send_replace(());
    }

    /// Returns what a container needs to use its devices. Refuses a device that does not exist. The
    /// kubelet alone decides which container has which device, so the agent records nothing.
    fn allocated(
        &self,
        request: &ContainerAllocateRequest,
    ) -> Result<ContainerAllocateResponse, Status> {
        let (kind, count) = (self.resource.kind, self.state.borrow().count);
        for id in &request.devices {
            let number = kind.number(id).filter(|it| (1..=count).contains(it));
            if number.is_none() {
                let name = &self.resource.name;
                let text = format!("{name} has no device {id:?}");
                return Err(Status::invalid_argument(text));
            }
        }
        Ok(ContainerAllocateResponse {
            devices: kind.files(),
            ..ContainerAllocateResponse::default()
        })
    }
}

#[async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = BoxStream<'static, Result<ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(OPTIONS))
    }

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        if self.streams.receiver_count() >= MOST_READERS {
            let text = format!("{MOST_READERS} calls of ListAndWatch are open");
            return Err(Status::resource_exhausted(text));
        }
        let mut state = self.state.clone();
        state.mark_changed();
        let start = (self.resource.clone(), state, self.streams.subscribe());
        self.opened.notify_one();
        let lists = stream::unfold(start, |(resource, mut state, mut end)| async move {
            tokio::select! {
                changed = state.changed() => changed.ok()?,
                _ = end.changed() => return None,
            }
            let list = resource.list(*state.borrow_and_update());
            Some((Ok(list), (resource, state, end)))
        });
        Ok(Response::new(lists.boxed()))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let requests = few(request.into_inner().container_requests)?;
        let chosen = requests.iter().map(|request| {
            let devices = choose(self.resource.kind, request);
            let devices =
                devices.map_err(|error| Status::invalid_argument(format!("{error:#}")))?;
            Ok(ContainerPreferredAllocationResponse { devices })
        });
        let container_responses = chosen.collect::<Result<_, Status>>()?;
        Ok(Response::new(PreferredAllocationResponse {
            container_responses,
        }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let requests = few(request.into_inner().container_requests)?;
        let allocated = requests.iter().map(|it| self.allocated(it));
        let container_responses = allocated.collect::<Result<Vec<_>, Status>>()?;
        let count = u64::try_from(container_responses.len()).unwrap_or_default();
        self.allocations.inc_by(count);
        Ok(Response::new(AllocateResponse {
            container_responses,
        }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

/// Returns `requests`, one for each container, unchanged. Refuses more than [`MOST_CONTAINERS`],
/// because the answer would be far longer than the requests.
fn few<T>(requests: Vec<T>) -> Result<Vec<T>, Status> {
    let count = requests.len();
    if count > MOST_CONTAINERS {
        let text = format!("{count} containers in a call, at most {MOST_CONTAINERS} are possible");
        return Err(Status::invalid_argument(text));
    }
    Ok(requests)
}

/// Maximum number of containers in a call. The kubelet sends one container at a time.
const MOST_CONTAINERS: usize = 1_000;

/// Maximum number of open `ListAndWatch` streams of a plugin. The kubelet needs one stream, and for
/// a moment two when it connects again.
const MOST_READERS: usize = 4;

/// Maximum number of connections to a plugin. Further connections wait.
const MOST_CONNECTIONS: usize = 8;

/// The agent registers a plugin again if the kubelet ends its stream and does not connect again
/// within this time.
const GRACE: Duration = Duration::from_millis(100);
