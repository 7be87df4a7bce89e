//! Keeps the agent's device plugins registered with the kubelet.

use std::convert::Infallible;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};
use std::{fs, io};

use anyhow::{Context as _, bail};
use cni::note;
use futures::future::{join_all, select_all};
use kubelet::device_plugin::registration_client::RegistrationClient;
use kubelet::device_plugin::{KUBELET_SOCKET, RegisterRequest, VERSION};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use super::directory::Directory;
use super::plugin::{OPTIONS, Plugin};
use super::socket::{AlreadyRunning, DirectoryLock, Socket};
use crate::grpc::{connect, refusal};
use crate::health::Health;
use crate::retry::Pauses;
use crate::unix_socket::is_abandoned;

/// Keeps the device plugins registered with the kubelet. Contains their sockets, and the agent's
/// lock in the directory of device plugins.
pub(crate) struct Registration {
    served: Vec<Served>,
    health: Health,
    lock: Option<DirectoryLock>,
}

struct Served {
    plugin: Plugin,
    socket: Option<Socket>,
    /// The kubelet that has accepted the plugin's registration.
    kubelet: Option<Kubelet>,
}

/// A start of the kubelet, known by the socket that the kubelet then creates. The agent registers
/// once with each: the kubelet keeps reading the devices of an earlier registration, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kubelet {
    inode: (u64, u64),
    start: SystemTime,
}

impl Registration {
    /// Returns a registration that serves no plugin yet.
    pub fn new(plugins: Vec<Plugin>, health: Health) -> Self {
        let served = plugins.into_iter().map(|plugin| Served {
            plugin,
            socket: None,
            kubelet: None,
        });
        Self {
            served: served.collect(),
            health,
            lock: None,
        }
    }

    /// Serves the plugins in the directory and registers them with the kubelet. Does both again
    /// after each start of the kubelet.
    ///
    /// # Errors
    /// Another agent serves in the directory. Events of the directory cannot be read.
    pub async fn keep(&mut self, mut directory: Directory) -> anyhow::Result<()> {
        loop {
            let path = directory.path().to_owned();
            tokio::select! {
                // Looks at changes first. The start of a kubelet is a change. If the agent
                // registered before it read this change, it would then register a second time.
                biased;
                change = directory.changed() => change?,
                ended = self.keep_in(&path) => match ended? {},
            }
        }
    }

    /// Serves and registers the plugins, again after each failure, and when the kubelet no longer
    /// reads the devices of a plugin. Returns only if another agent serves in the directory. If
    /// something changes in the directory, [`Self::keep`] drops this future.
    async fn keep_in(&mut self, directory: &Path) -> anyhow::Result<Infallible> {
        let mut pauses = Pauses::new();
        loop {
            match self.complete(directory).await {
                Ok(()) => {
                    self.health.set(HEALTH, None);
                    self.until_unread().await;
                }
                Err(error) if error.is::<AlreadyRunning>() => return Err(error),
                Err(error) => self.health.set(HEALTH, Some(format!("{error:#}"))),
            }
            pauses.wait().await;
        }
    }

    /// Takes the lock, serves the sockets and registers the plugins. Skips each step that is
    /// already done.
    async fn complete(&mut self, directory: &Path) -> anyhow::Result<()> {
        if directory.is_dir() {
            self.serve(directory).await?;
        }
        // Lets `keep` look for a change of the directory. After a change, `keep` drops this future,
        // so the agent does not register with a kubelet that has ended.
        yield_now().await;
        self.register(directory).await
    }

    async fn serve(&mut self, directory: &Path) -> anyhow::Result<()> {
        if !self.lock.as_ref().is_some_and(DirectoryLock::is_valid) {
            self.served.iter_mut().for_each(|it| it.socket = None);
            self.lock = Some(DirectoryLock::take(directory).await?);
        }
        for served in &mut self.served {
            served.serve(directory)?;
        }
        Ok(())
    }

    /// Registers the plugins whose list of devices the kubelet does not read.
    async fn register(&mut self, directory: &Path) -> anyhow::Result<()> {
        let socket = directory.join(KUBELET_SOCKET);
        let Ok(kubelet) = Kubelet::at(&socket) else {
            let reason = format!("the kubelet does not run: {} is missing", socket.display());
            self.health.set(HEALTH, Some(reason));
            // Waits until `keep` drops this future: without a change in the directory, the
            // kubelet's socket stays missing.
            return std::future::pending().await;
        };
        let open = self.served.iter_mut();
        let open: Vec<_> = open.filter(|it| !it.is_read_by(kubelet)).collect();
        if !open.is_empty() && !is_served(&socket).await {
            let socket = socket.display();
            bail!("the kubelet does not run: nothing listens on {socket}");
        }
        let registering = open.into_iter().map(|it| it.register(&socket, kubelet));
        join_all(registering).await.into_iter().collect()
    }

    /// Waits until the kubelet no longer reads the devices of one of the plugins.
    async fn until_unread(&self) {
        let unread = self
            .served
            .iter()
            .map(|it| Box::pin(it.plugin.until_unread()));
        select_all(unread).await;
    }
}

impl Served {
    fn serve(&mut self, directory: &Path) -> anyhow::Result<()> {
        if self.socket.as_ref().is_some_and(Socket::is_served) {
            return Ok(());
        }
        self.socket = None;
        let name = &self.plugin.resource.name;
        let socket = Socket::serve(directory, &self.plugin);
        self.socket = Some(socket.with_context(|| format!("serve {name}"))?);
        Ok(())
    }

    fn is_read_by(&self, kubelet: Kubelet) -> bool {
        self.kubelet == Some(kubelet) && self.plugin.is_read()
    }

    /// Announces the plugin, and waits until the kubelet reads its devices.
    async fn register(&mut self, socket: &Path, kubelet: Kubelet) -> anyhow::Result<()> {
        let resource = &self.plugin.resource;
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: resource.socket_name(),
            resource_name: resource.name.clone(),
            options: Some(OPTIONS),
        };
        let what = || format!("register {} at {}", resource.name, socket.display());
        let registered = timeout(LONGEST_CALL, call(socket, request)).await;
        registered
            .unwrap_or_else(|_| bail!("the kubelet does not answer"))
            .with_context(what)?;
        self.kubelet = Some(kubelet);
        self.plugin.registrations.inc();
        let read = timeout(LONGEST_CALL, self.plugin.until_read()).await;
        if read.is_err() {
            bail!(
                "{}: the kubelet accepts, but does not read the devices",
                what()
            );
        }
        note!("devices: the kubelet reads {}", resource.name);
        Ok(())
    }
}

impl Kubelet {
    /// Returns the kubelet whose socket is at this path.
    fn at(socket: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(socket)?;
        Ok(Self {
            inode: (metadata.dev(), metadata.ino()),
            start: metadata.modified()?,
        })
    }
}

/// Waits up to [`LONGEST_START`] until a process listens on the socket, and returns whether one
/// does. A kubelet that starts creates the socket a moment before it listens there. The socket of a
/// kubelet that has ended stays until the next one starts.
async fn is_served(socket: &Path) -> bool {
    let start = Instant::now();
    while is_abandoned(socket).await {
        if start.elapsed() > LONGEST_START {
            return false;
        }
        sleep(LISTENS).await;
    }
    true
}

async fn call(kubelet: &Path, request: RegisterRequest) -> anyhow::Result<()> {
    let mut client = RegistrationClient::new(connect(kubelet).await?);
    client.register(request).await.map_err(|it| refusal(&it))?;
    Ok(())
}

/// Name under which the agent's health shows failures to register.
const HEALTH: &str = "devices";

/// Time limit for a kubelet to listen on its socket, which exists already.
const LONGEST_START: Duration = Duration::from_secs(1);

/// The time between two attempts to connect to a kubelet that does not listen yet.
const LISTENS: Duration = Duration::from_millis(20);

/// Time limit for a registration, and then for the kubelet to read the devices.
const LONGEST_CALL: Duration = Duration::from_secs(5);
