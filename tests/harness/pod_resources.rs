//! The kubelet's socket with the pod resources API.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use kubelet::pod_resources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use kubelet::pod_resources::{
    AllocatableRequest, AllocatableResponse, ContainerDevices, ContainerResources, ListRequest,
    ListResponse, PodResources as Pod,
};
use tokio::net::UnixListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, async_trait};

use crate::cri::Manner;

/// A kubelet that lists devices until this is dropped.
#[derive(Debug)]
pub struct PodResources {
    shared: Arc<Shared>,
    /// The kubelet ends when this is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    pods: Mutex<Vec<Pod>>,
    allocatable: Mutex<Option<BTreeMap<String, usize>>>,
    manner: Mutex<Manner>,
    lists: AtomicUsize,
}

impl PodResources {
    /// Starts a kubelet with this root directory. It knows no devices, and has
    /// `GetAllocatableResources` turned off until [`Self::lists_devices`].
    pub fn serve(root: &Path) -> Self {
        let path = root.join("pod-resources/kubelet.sock");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        drop(fs::remove_file(&path));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let shared = Arc::<Shared>::default();
        let (stop, stopped) = oneshot::channel();
        let service = PodResourcesListerServer::new(Service(Arc::clone(&shared)));
        let serve = async move {
            let incoming = UnixListenerStream::new(UnixListener::from_std(listener).unwrap());
            tokio::select! {
                ended = Server::builder().serve_with_incoming(service, incoming) => ended.unwrap(),
                _ = stopped => {}
            }
        };
        let thread = thread::spawn(|| {
            let executor = Builder::new_current_thread().enable_all().build().unwrap();
            executor.block_on(serve);
        });
        Self {
            shared,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Gives devices to the container `main` of a pod in the namespace `default`.
    pub fn gives(&self, pod: &str, devices: &[(&str, usize)]) {
        let containers = vec![ContainerResources {
            name: "main".to_owned(),
            devices: devices
                .iter()
                .map(|(name, count)| some(name, *count))
                .collect(),
        }];
        self.shared.pods.lock().unwrap().push(Pod {
            name: pod.to_owned(),
            namespace: "default".to_owned(),
            containers,
        });
    }

    /// Lists this number of devices of a resource as allocatable.
    pub fn lists_devices(&self, resource: &str, count: usize) {
        let mut allocatable = self.shared.allocatable.lock().unwrap();
        let allocatable = allocatable.get_or_insert_default();
        allocatable.insert(resource.to_owned(), count);
    }

    /// Sets how the kubelet answers from now on.
    pub fn behaves(&self, manner: Manner) {
        *self.shared.manner.lock().unwrap() = manner;
    }

    /// Returns how often the list of pods was requested.
    pub fn lists(&self) -> usize {
        self.shared.lists.load(Ordering::Relaxed)
    }
}

impl Drop for PodResources {
    fn drop(&mut self) {
        self.stop = None;
        drop(self.thread.take().map(thread::JoinHandle::join));
    }
}

#[derive(Debug)]
struct Service(Arc<Shared>);

#[async_trait]
impl PodResourcesLister for Service {
    async fn list(&self, _: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        self.0.lists.fetch_add(1, Ordering::Relaxed);
        let manner = self.0.manner.lock().unwrap().clone();
        let mut pods = self.0.pods.lock().unwrap().clone();
        match manner {
            Manner::Lists => {}
            Manner::Floods(bytes) => pods.push(Pod {
                name: "x".repeat(bytes),
                ..Pod::default()
            }),
            Manner::Hangs => std::future::pending().await,
            Manner::Fails(message) => return Err(Status::internal(message)),
        }
        Ok(Response::new(ListResponse { pods }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableRequest>,
    ) -> Result<Response<AllocatableResponse>, Status> {
        let allocatable = self.0.allocatable.lock().unwrap().clone();
        let allocatable =
            allocatable.ok_or_else(|| Status::unknown("API GetAllocatableResources disabled"))?;
        // The kubelet has an item for each device.
        let items = allocatable.iter();
        let items = items.flat_map(|(name, count)| (0..*count).map(|_| some(name, 1)));
        let devices = items.collect();
        Ok(Response::new(AllocatableResponse { devices }))
    }
}

fn some(resource: &str, count: usize) -> ContainerDevices {
    ContainerDevices {
        resource_name: resource.to_owned(),
        ids: (0..count).map(|it| format!("id-{it:05}")).collect(),
    }
}
