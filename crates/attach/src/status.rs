//! STATUS: reports whether an ADD can succeed.

use cni::{StatusRequest, Verb};

use crate::del::forward;
use crate::desired::Topology;

/// Checks whether the configuration, the kernel and the bridge let an ADD succeed, then calls
/// STATUS of the IPAM plugin.
///
/// # Errors
/// - The configuration is invalid.
/// - Code 50: the kernel lacks a part of `nf_tables` that the configuration needs.
/// - Code 50: every ADD would fail because of the state of the bridge.
/// - The error of the IPAM plugin, with its code.
pub fn status<T: Topology>(request: &StatusRequest) -> anyhow::Result<()> {
    let topology = T::parse(&request.network)?;
    topology.guard().probe()?;
    topology.probe_host_side()?;
    cni::step("ask the IPAM plugin");
    forward(&request.network, Verb::Status)
}
