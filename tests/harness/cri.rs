//! A container runtime's socket with the container runtime interface (CRI), and sockets of peers
//! that misbehave.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use kubelet::cri::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use kubelet::cri::{
    ListPodSandboxRequest, ListPodSandboxResponse, PodSandbox, PodSandboxState, VersionRequest,
    VersionResponse,
};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, async_trait};

/// A runtime that lists its sandboxes until this is dropped.
#[derive(Debug)]
pub struct Cri {
    path: PathBuf,
    shared: Arc<Shared>,
    /// The runtime ends when this is dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// How the runtime answers a request for its list.
#[derive(Debug, Clone, Default)]
pub enum Manner {
    /// With its sandboxes.
    #[default]
    Lists,
    /// Never.
    Hangs,
    /// With this error message.
    Fails(String),
    /// With its sandboxes, and with one whose ID has this number of bytes.
    Floods(usize),
}

#[derive(Debug, Default)]
struct Shared {
    sandboxes: Mutex<BTreeMap<String, PodSandboxState>>,
    manner: Mutex<Manner>,
    lists: AtomicUsize,
}

impl Cri {
    /// Starts a runtime without sandboxes. An existing socket is replaced, as runtimes do.
    pub fn serve(path: &Path) -> Self {
        let shared = Arc::new(Shared::default());
        let listener = listener(path);
        listener.set_nonblocking(true).unwrap();
        let (stop, stopped) = oneshot::channel();
        let service = Service(Arc::clone(&shared));
        let serve = async move {
            let listener = tokio::net::UnixListener::from_std(listener).unwrap();
            let mut server = Server::builder();
            let server = server.add_service(RuntimeServiceServer::new(service));
            let serving = server.serve_with_incoming(UnixListenerStream::new(listener));
            tokio::select! {
                ended = serving => ended.unwrap(),
                _ = stopped => {}
            }
        };
        let thread = thread::spawn(|| {
            let executor = Builder::new_current_thread().enable_all().build().unwrap();
            executor.block_on(serve);
        });
        Self {
            path: path.to_owned(),
            shared,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Adds a sandbox, or changes its state.
    pub fn set(&self, sandbox: &str, state: PodSandboxState) {
        let mut sandboxes = self.shared.sandboxes.lock().unwrap();
        sandboxes.insert(sandbox.to_owned(), state);
    }

    /// Adds a sandbox that runs.
    pub fn runs(&self, sandbox: &str) {
        self.set(sandbox, PodSandboxState::Ready);
    }

    /// Removes a sandbox.
    pub fn forget(&self, sandbox: &str) {
        self.shared.sandboxes.lock().unwrap().remove(sandbox);
    }

    /// Sets how the runtime answers from now on.
    pub fn behaves(&self, manner: Manner) {
        *self.shared.manner.lock().unwrap() = manner;
    }

    /// Returns how often the list was requested.
    pub fn lists(&self) -> usize {
        self.shared.lists.load(Ordering::Relaxed)
    }
}

impl Drop for Cri {
    fn drop(&mut self) {
        self.stop = None;
        drop(self.thread.take().map(thread::JoinHandle::join));
        drop(fs::remove_file(&self.path));
    }
}

#[derive(Debug)]
struct Service(Arc<Shared>);

#[async_trait]
impl RuntimeService for Service {
    async fn version(
        &self,
        _: Request<VersionRequest>,
    ) -> Result<Response<VersionResponse>, Status> {
        Ok(Response::new(VersionResponse::default()))
    }

    async fn list_pod_sandbox(
        &self,
        _: Request<ListPodSandboxRequest>,
    ) -> Result<Response<ListPodSandboxResponse>, Status> {
        self.0.lists.fetch_add(1, Ordering::Relaxed);
        let manner = self.0.manner.lock().unwrap().clone();
        let flood = match manner {
            Manner::Lists => None,
            Manner::Floods(bytes) => Some("x".repeat(bytes)),
            Manner::Hangs => std::future::pending().await,
            Manner::Fails(message) => return Err(Status::internal(message)),
        };
        let sandboxes = self.0.sandboxes.lock().unwrap().clone();
        let flood = flood.map(|id| (id, PodSandboxState::Ready));
        let all = sandboxes.into_iter().chain(flood);
        let items = all.map(|(id, state)| PodSandbox {
            id,
            state: state.into(),
        });
        let items = items.collect();
        Ok(Response::new(ListPodSandboxResponse { items }))
    }
}

/// Listens at `path`, and lets `behaves` treat each connection on a thread of its own.
pub fn peer(path: &Path, behaves: impl Fn(UnixStream) + Send + Clone + 'static) {
    let listener = listener(path);
    thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            let behaves = behaves.clone();
            thread::spawn(move || behaves(connection));
        }
    });
}

fn listener(path: &Path) -> UnixListener {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    drop(fs::remove_file(path));
    UnixListener::bind(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
