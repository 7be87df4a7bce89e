//! The sandboxes that container runtimes know, by the container runtime interface (CRI).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use kubelet::cri::runtime_service_client::RuntimeServiceClient;
use kubelet::cri::{ListPodSandboxRequest, VersionRequest};
use node::RUNTIME_SOCKETS;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::Channel;

use super::config::RuntimeSocket;
use crate::grpc::{connect, refusal};

/// Connections to the node's container runtimes, which list their sandboxes.
#[derive(Debug)]
pub(super) struct Runtimes(Vec<Runtime>);

#[derive(Debug)]
struct Runtime {
    socket: PathBuf,
    client: RuntimeServiceClient<Channel>,
}

impl Runtimes {
    /// Connects to all runtimes, and asks each one for its version. So if a runtime does not
    /// answer, a round of garbage collection fails before it reads the node's attachments. Adds the
    /// sockets to `seen`, those of earlier rounds.
    ///
    /// # Errors
    /// A runtime does not answer, a service other than a runtime answers, none of the usual sockets
    /// exists, or one that was there earlier is missing: a runtime removes its socket when it stops.
    pub async fn connect(
        sockets: &RuntimeSocket,
        seen: &mut BTreeSet<PathBuf>,
    ) -> anyhow::Result<Self> {
        let mut paths = sockets.paths();
        if *sockets == RuntimeSocket::Usual {
            paths.retain(|it| seen.contains(it) || it.exists());
            seen.extend(paths.iter().cloned());
            if let Some(missing) = paths.iter().find(|it| !it.exists()) {
                bail!(
                    "{} was there, but is missing: start its runtime, or restart cni-agent if the \
                     runtime is removed",
                    missing.display()
                );
            }
            ensure!(
                !paths.is_empty(),
                "no container runtime: neither {} exists; gc.runtimeSocket names another socket, \
                 or null on a node without CRI",
                RUNTIME_SOCKETS.join(" nor ")
            );
        }
        let mut runtimes = Vec::new();
        for socket in paths {
            let runtime = Runtime::connect(&socket).await;
            runtimes.push(runtime.with_context(|| socket.display().to_string())?);
        }
        Ok(Self(runtimes))
    }

    /// Returns the sockets of the runtimes.
    pub fn sockets(&self) -> Vec<PathBuf> {
        self.0.iter().map(|it| it.socket.clone()).collect()
    }

    /// Returns the IDs of all sandboxes, whatever their state.
    ///
    /// # Errors
    /// A runtime does not answer, or its list is larger than 16 MiB.
    pub async fn sandboxes(self) -> anyhow::Result<BTreeSet<String>> {
        let mut ids = BTreeSet::new();
        for Runtime { socket, mut client } in self.0 {
            let listed = within(client.list_pod_sandbox(ListPodSandboxRequest {})).await;
            let what = || format!("{}: list sandboxes", socket.display());
            let listed = listed.with_context(what)?.into_inner();
            ids.extend(listed.items.into_iter().map(|it| it.id));
        }
        Ok(ids)
    }
}

impl Runtime {
    async fn connect(socket: &Path) -> anyhow::Result<Self> {
        let client = RuntimeServiceClient::new(connect(socket).await?);
        let mut client = client.max_decoding_message_size(LARGEST_LIST);
        within(client.version(VersionRequest {})).await?;
        Ok(Self {
            socket: socket.to_owned(),
            client,
        })
    }
}

/// Returns the answer of `call`. Fails if the answer takes longer than [`PATIENCE`].
async fn within<T>(call: impl Future<Output = Result<T, Status>>) -> anyhow::Result<T> {
    let answer = timeout(PATIENCE, call).await;
    let answer = answer.map_err(|_| anyhow!("no answer within {PATIENCE:?}"))?;
    answer.map_err(|status| refusal(&status))
}

/// Time limit of each call to a runtime.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum size of a runtime's list of sandboxes in bytes, the same as the kubelet's. A sandbox
/// with long annotations takes some kilobytes.
const LARGEST_LIST: usize = 16 << 20;
