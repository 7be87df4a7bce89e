//! A client of the service `runtime.v1.RuntimeService` at a socket, with one call at a time.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use prost::Message;
use tokio::runtime::{Builder, Runtime as Executor};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::api::{
    Empty, NetworkConfig, PodSandboxConfig, PodSandboxId, PodSandboxStatusRequest,
    PodSandboxStatusResponse, RunPodSandboxRequest, RuntimeConfig, RuntimeStatus, StatusResponse,
    UpdateRuntimeConfigRequest,
};

/// A runtime with an open connection.
#[derive(Debug)]
pub struct Runtime {
    executor: Executor,
    service: Grpc<Channel>,
    timeout: Duration,
}

impl Runtime {
    /// Connects to a socket: `unix:///run/containerd/containerd.sock`. A call that takes longer
    /// than `timeout` fails, and the runtime cancels it.
    pub fn connect(endpoint: &str, timeout: Duration) -> anyhow::Result<Self> {
        let executor = Builder::new_current_thread().enable_all().build()?;
        let channel = executor.block_on(Endpoint::from_shared(endpoint.to_owned())?.connect());
        let channel = channel.with_context(|| format!("connect to {endpoint}"))?;
        Ok(Self {
            executor,
            service: Grpc::new(channel),
            timeout,
        })
    }

    /// Runs a sandbox and returns its ID.
    pub fn run(&mut self, config: PodSandboxConfig) -> anyhow::Result<String> {
        let request = RunPodSandboxRequest {
            config: Some(config),
        };
        let answer: PodSandboxId = self.call("RunPodSandbox", request)?;
        Ok(answer.pod_sandbox_id)
    }

    /// Returns the status of a sandbox.
    pub fn status_of(&mut self, id: &str) -> anyhow::Result<PodSandboxStatusResponse> {
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose: true,
        };
        self.call("PodSandboxStatus", request)
    }

    /// Stops a sandbox; succeeds if it is stopped already.
    pub fn stop(&mut self, id: &str) -> anyhow::Result<()> {
        let Empty {} = self.call("StopPodSandbox", sandbox(id))?;
        Ok(())
    }

    /// Stops and removes a sandbox.
    pub fn remove(&mut self, id: &str) -> anyhow::Result<()> {
        let Empty {} = self.call("RemovePodSandbox", sandbox(id))?;
        Ok(())
    }

    /// Sets the networks of the node's pods.
    pub fn set_pod_cidr(&mut self, pod_cidr: &str) -> anyhow::Result<()> {
        let network_config = Some(NetworkConfig {
            pod_cidr: pod_cidr.to_owned(),
        });
        let request = UpdateRuntimeConfigRequest {
            runtime_config: Some(RuntimeConfig { network_config }),
        };
        let Empty {} = self.call("UpdateRuntimeConfig", request)?;
        Ok(())
    }

    /// Returns whether the runtime can run pods.
    pub fn status(&mut self) -> anyhow::Result<RuntimeStatus> {
        let answer: StatusResponse = self.call("Status", Empty {})?;
        answer.status.context("the runtime's answer is empty")
    }

    fn call<Q, A>(&mut self, method: &'static str, message: Q) -> anyhow::Result<A>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let path = PathAndQuery::try_from(format!("/runtime.v1.RuntimeService/{method}"))?;
        let mut request = tonic::Request::new(message);
        request.set_timeout(self.timeout);
        let service = &mut self.service;
        let answer = self.executor.block_on(async {
            service.ready().await.map_err(anyhow::Error::from)?;
            let answer = service.unary(request, path, ProstCodec::<Q, A>::default());
            let answer = answer.await;
            answer.map_err(|status| anyhow!("{:?}: {}", status.code(), status.message()))
        });
        Ok(answer.context(method)?.into_inner())
    }
}

fn sandbox(id: &str) -> PodSandboxId {
    PodSandboxId {
        pod_sandbox_id: id.to_owned(),
    }
}
