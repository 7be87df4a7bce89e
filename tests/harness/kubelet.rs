//! The kubelet's part of the device plugin API and of the pod resources API: it reads the devices of
//! plugins that register, allocates them and remembers that in its checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ::kubelet::device_plugin::device_plugin_client::DevicePluginClient;
use ::kubelet::device_plugin::registration_server::{Registration, RegistrationServer};
use ::kubelet::device_plugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Device, DevicePluginOptions, Empty,
    PreferredAllocationRequest, RegisterRequest,
};
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, async_trait};

use crate::DEADLINE;

/// A kubelet that runs until this is dropped. Its sockets stay then, as after SIGKILL.
#[derive(Debug)]
pub struct Kubelet {
    directory: PathBuf,
    seen: Arc<Seen>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What a kubelet does with a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// It connects to the plugin and reads its devices.
    Usual,
    /// It refuses.
    Refuses,
    /// It accepts, and does not connect to the plugin.
    Forgets,
}

/// What the kubelet has seen, for the test that waits.
#[derive(Debug, Default)]
struct Seen {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Devices by resource, as the plugin listed them last.
    devices: BTreeMap<String, Vec<Device>>,
    registrations: Vec<RegisterRequest>,
    options: Vec<DevicePluginOptions>,
    lists: usize,
    /// The task that reads each resource.
    readers: BTreeMap<String, AbortHandle>,
}

impl Kubelet {
    /// Starts it with this root directory. It removes all files of its directory of plugins but its
    /// checkpoint, as the real one does.
    pub fn start(root: &Path) -> Self {
        Self::start_as(root, Manner::Usual)
    }

    /// Starts one that treats registrations in this manner.
    pub fn start_as(root: &Path, manner: Manner) -> Self {
        let directory = root.join("device-plugins");
        fs::create_dir_all(&directory).unwrap();
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() || path.ends_with(CHECKPOINT) {
                continue;
            }
            fs::remove_file(path).unwrap();
        }
        let seen = Arc::<Seen>::default();
        let (end, ended) = oneshot::channel();
        let (ready, is_ready) = mpsc::channel();
        let service = Service {
            directory: directory.clone(),
            manner,
            seen: Arc::clone(&seen),
        };
        let thread = thread::spawn(move || {
            event_loop().block_on(async {
                let socket = UnixListener::bind(service.directory.join("kubelet.sock")).unwrap();
                ready.send(()).unwrap();
                let server = Server::builder().serve_with_incoming(
                    RegistrationServer::new(service),
                    UnixListenerStream::new(socket),
                );
                tokio::select! {
                    outcome = server => outcome.unwrap(),
                    _ = ended => {}
                }
            });
        });
        is_ready.recv().unwrap();
        Self {
            directory,
            seen,
            end: Some(end),
            thread: Some(thread),
        }
    }

    /// Returns the devices of a resource with their health.
    pub fn devices(&self, resource: &str) -> BTreeMap<String, String> {
        let devices = self.listed(resource);
        devices.into_iter().map(|it| (it.id, it.health)).collect()
    }

    /// Returns the devices of a resource as the plugin listed them last.
    pub fn listed(&self, resource: &str) -> Vec<Device> {
        let state = self.seen.state();
        state.devices.get(resource).cloned().unwrap_or_default()
    }

    /// Waits until the resource has as many healthy devices, and returns how long that took.
    #[track_caller]
    pub fn wait_for(&self, resource: &str, count: usize) -> Duration {
        let start = Instant::now();
        let healthy = |state: &State| {
            let devices = state.devices.get(resource).into_iter().flatten();
            devices.filter(|it| it.health == "Healthy").count()
        };
        let (state, changed) = (self.seen.state(), &self.seen.changed);
        let waited = changed.wait_timeout_while(state, DEADLINE, |it| healthy(it) != count);
        let has = healthy(&waited.unwrap().0);
        assert_eq!(has, count, "healthy devices of {resource}");
        start.elapsed()
    }

    /// Another plugin registered this resource and has ended: the devices are unhealthy, and this
    /// kubelet still reads the lists of the first plugin.
    pub fn lost_to_another(&self, resource: &str) {
        let mut state = self.seen.state();
        state.readers.remove(resource);
        state.forget(resource);
    }

    /// Returns the accepted registrations.
    pub fn registrations(&self) -> Vec<RegisterRequest> {
        self.seen.state().registrations.clone()
    }

    /// Returns the answers of plugins to the question for their options.
    pub fn options(&self) -> Vec<DevicePluginOptions> {
        self.seen.state().options.clone()
    }

    /// Returns how many lists plugins have sent.
    pub fn lists(&self) -> usize {
        self.seen.state().lists
    }

    /// Gives a container of this pod as many devices, and returns the plugin's answer.
    ///
    /// # Errors
    /// The plugin refuses, or too few devices are free.
    pub fn allocate(
        &self,
        pod: &str,
        resource: &str,
        count: i32,
    ) -> Result<ContainerAllocateResponse, Status> {
        let taken = self.allocated();
        let taken: BTreeSet<_> = taken.values().flatten().collect();
        let devices = self.devices(resource).into_iter();
        let free = devices.filter(|(id, health)| health == "Healthy" && !taken.contains(id));
        let request = ContainerPreferredAllocationRequest {
            available: free.map(|(id, _)| id).collect(),
            must_include: Vec::new(),
            size: count,
        };
        let mut plugin = self.plugin(resource);
        let chosen = plugin.run(async |it| {
            let container_requests = vec![request];
            let request = PreferredAllocationRequest { container_requests };
            it.get_preferred_allocation(request).await
        })?;
        let chosen = chosen.into_inner().container_responses.remove(0).devices;
        let answer = self.allocate_these(resource, &chosen)?;
        self.remember(pod, resource, &chosen);
        Ok(answer)
    }

    /// Asks the plugin for these devices and remembers nothing.
    ///
    /// # Errors
    /// The plugin refuses.
    pub fn allocate_these(
        &self,
        resource: &str,
        ids: &[String],
    ) -> Result<ContainerAllocateResponse, Status> {
        let devices = ids.to_vec();
        let answer = self.plugin(resource).run(async |it| {
            let container_requests = vec![ContainerAllocateRequest { devices }];
            it.allocate(AllocateRequest { container_requests }).await
        })?;
        Ok(answer.into_inner().container_responses.remove(0))
    }

    /// Returns a new connection to the plugin of this resource.
    pub fn plugin(&self, resource: &str) -> Plugin {
        let registrations = self.registrations();
        let mut of = registrations.iter().rev();
        let registration = of.find(|it| it.resource_name == resource).unwrap();
        Plugin::connect(&self.directory.join(&registration.endpoint))
    }

    /// Returns the allocated devices in the checkpoint, by pod and resource.
    pub fn allocated(&self) -> BTreeMap<(String, String), Vec<String>> {
        let entries = checkpoint(&self.directory)["Data"]["PodDeviceEntries"].clone();
        let entries = entries.as_array().unwrap().iter().map(|it| {
            let word = |key: &str| it[key].as_str().unwrap().to_owned();
            let ids = it["DeviceIDs"]["-1"].as_array().unwrap().iter();
            let ids = ids.map(|id| id.as_str().unwrap().to_owned()).collect();
            ((word("PodUID"), word("ResourceName")), ids)
        });
        entries.collect()
    }

    fn remember(&self, pod: &str, resource: &str, ids: &[String]) {
        let mut checkpoint = checkpoint(&self.directory);
        let entries = checkpoint["Data"]["PodDeviceEntries"].as_array_mut();
        entries.unwrap().push(json!({
            "PodUID": pod, "ContainerName": "main", "ResourceName": resource,
            "DeviceIDs": {"-1": ids}, "AllocResp": "",
        }));
        fs::write(self.directory.join(CHECKPOINT), checkpoint.to_string()).unwrap();
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        drop(self.end.take());
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// A connection to a plugin, with an event loop of its own.
#[derive(Debug)]
pub struct Plugin {
    runtime: Runtime,
    client: DevicePluginClient<Channel>,
}

impl Plugin {
    /// Connects to this socket.
    pub fn connect(socket: &Path) -> Self {
        let runtime = event_loop();
        let client = DevicePluginClient::new(runtime.block_on(connect(socket)).unwrap());
        Self { runtime, client }
    }

    /// Runs calls.
    pub fn run<T>(&mut self, calls: impl AsyncFnOnce(&mut DevicePluginClient<Channel>) -> T) -> T {
        self.runtime.block_on(calls(&mut self.client))
    }
}

struct Service {
    directory: PathBuf,
    manner: Manner,
    seen: Arc<Seen>,
}

#[async_trait]
impl Registration for Service {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        match self.manner {
            Manner::Refuses => return Err(Status::failed_precondition("this kubelet refuses")),
            Manner::Forgets => {
                self.seen.state().registrations.push(request);
                return Ok(Response::new(Empty {}));
            }
            Manner::Usual => {}
        }
        // The kubelet connects before it answers: `Register` in
        // pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go of Kubernetes.
        let channel = connect(&self.directory.join(&request.endpoint)).await;
        let channel = channel.map_err(|it| Status::internal(it.to_string()))?;
        let mut client = DevicePluginClient::new(channel);
        let options = client.get_device_plugin_options(Empty {}).await?;
        {
            let mut state = self.seen.state();
            state.options.push(options.into_inner());
            state.registrations.push(request.clone());
        }
        let resource = request.resource_name;
        let reader = tokio::spawn(read(client, resource.clone(), Arc::clone(&self.seen)));
        let reader = reader.abort_handle();
        self.seen.state().readers.insert(resource, reader);
        Ok(Response::new(Empty {}))
    }
}

/// Reads lists until the plugin ends. Its devices are unhealthy then.
async fn read(mut client: DevicePluginClient<Channel>, resource: String, seen: Arc<Seen>) {
    if let Ok(lists) = client.list_and_watch(Empty {}).await {
        let mut lists = lists.into_inner();
        while let Ok(Some(list)) = lists.message().await {
            let mut state = seen.state();
            state.lists += 1;
            state.devices.insert(resource.clone(), list.devices);
            seen.changed.notify_all();
        }
    }
    let mut state = seen.state();
    // In older versions, the end of a connection also ends a newer one of the resource: `runClient` in
    // pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go of Kubernetes.
    if let Some(reader) = state.readers.remove(&resource) {
        reader.abort();
    }
    state.forget(&resource);
    seen.changed.notify_all();
}

impl State {
    /// The devices of this resource are unhealthy from now on.
    fn forget(&mut self, resource: &str) {
        for device in self.devices.entry(resource.to_owned()).or_default() {
            "Unhealthy".clone_into(&mut device.health);
        }
    }
}

impl Seen {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

async fn connect(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()))?;
    endpoint.connect().await
}

fn event_loop() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn checkpoint(directory: &Path) -> Value {
    let empty = json!({"Data": {"PodDeviceEntries": [], "RegisteredDevices": {}}, "Checksum": 0});
    let text = fs::read_to_string(directory.join(CHECKPOINT));
    text.map_or(empty, |it| serde_json::from_str(&it).unwrap())
}

const CHECKPOINT: &str = "kubelet_internal_checkpoint";
