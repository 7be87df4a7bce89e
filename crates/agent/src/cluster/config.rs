//! The section `cluster` of the agent's configuration file.

use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use cluster::{STATE_FILE, Vxlan};
use ipnetwork::IpNetwork;
use serde::Deserialize;

use super::api::Access;
use super::conflist::Conflist;

/// The section `cluster` of the agent's configuration file.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    /// How packets reach the pods of other nodes.
    pub mode: Mode,
    /// The values of [`Mode::Vxlan`] and [`Mode::Auto`].
    pub vxlan: Option<Vxlan>,
    /// The values of [`Mode::Wireguard`].
    pub wireguard: Option<Wireguard>,
    /// The name of this node's Node object; see [`Self::node_name`].
    pub node: Option<String>,
    /// How the agent reaches the API server.
    #[serde(default)]
    pub access: Access,
    /// Between which networks packets are not masqueraded; `None` if between the pod CIDRs of all
    /// nodes.
    #[serde(rename = "clusterCIDRs")]
    pub cluster_cidrs: Option<BTreeSet<IpNetwork>>,
    /// The network configuration that the agent writes; `None` if another program writes it.
    pub conflist: Option<Conflist>,
    /// The file in which the agent keeps the nodes while it does not run.
    #[serde(default = "state_file")]
    pub state_file: PathBuf,
}

/// How packets reach the pods of other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Mode {
    /// Through the address of the other node, which has to be in a network of this node.
    Direct,
    /// Through VXLAN devices, whose packets go between the nodes' addresses.
    Vxlan,
    /// Directly where packets of pods pass, otherwise through VXLAN devices.
    Auto,
    /// Through a WireGuard device, which encrypts them.
    Wireguard,
    /// Through routes that the agent does not make.
    None,
}

impl Mode {
    /// Returns whether the node has VXLAN devices.
    pub fn has_tunnels(self) -> bool {
        matches!(self, Self::Vxlan | Self::Auto)
    }

    /// Returns the time after which everything is compared even without an event: the kernel reports no
    /// change of a WireGuard device, and no sysctl of a link.
    pub fn interval(self) -> Duration {
        match self {
            Self::Wireguard => Duration::from_secs(30),
            _ => Duration::from_mins(1),
        }
    }
}

/// The values of [`Mode::Wireguard`].
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Wireguard {
    /// The UDP port at which nodes receive packets.
    pub port: u16,
}

impl Config {
    /// Returns the values of [`Mode::Wireguard`].
    pub fn wireguard(&self) -> Wireguard {
        self.wireguard.unwrap_or_default()
    }

    /// Returns the file of this node's private key.
    pub fn key_file(&self) -> PathBuf {
        self.state_file.with_file_name("wireguard.key")
    }

    /// Returns the name of this node's Node object: the key `node`, otherwise the environment
    /// variable `NODE_NAME`, otherwise the host's name in lower case, as the kubelet does.
    ///
    /// # Errors
    /// The host's name is no UTF-8.
    pub fn node_name(&self) -> anyhow::Result<String> {
        let named = self.node.clone().or_else(|| env::var("NODE_NAME").ok());
        if let Some(name) = named.filter(|it| !it.is_empty()) {
            return Ok(name);
        }
        let name = nix::unistd::gethostname()?.into_string().ok();
        let name = name.context("the host's name is no UTF-8: set the key node of cluster")?;
        Ok(name.trim().to_lowercase())
    }

    /// Checks the values of VXLAN and WireGuard, and the template of the network configuration.
    ///
    /// # Errors
    /// A value is out of its range. The template is no valid conflist, or has an unknown
    /// placeholder.
    pub fn check(&self) -> anyhow::Result<()> {
        let vxlan = self.vxlan.unwrap_or_default();
        ensure!(
            self.mode.has_tunnels() || self.vxlan.is_none(),
            "cluster.vxlan needs the mode vxlan or auto"
        );
        ensure!(
            (1..1 << 24).contains(&vxlan.vni),
            "cluster.vxlan.vni {}: expected 1 to 16777215",
            vxlan.vni
        );
        ensure!(vxlan.port != 0, "cluster.vxlan.port: expected 1 to 65535");
        ensure!(
            self.mode == Mode::Wireguard || self.wireguard.is_none(),
            "cluster.wireguard needs the mode wireguard"
        );
        ensure!(
            self.wireguard().port != 0,
            "cluster.wireguard.port: expected 1 to 65535"
        );
        let Some(conflist) = &self.conflist else {
            return Ok(());
        };
        conflist.check().context("cluster.conflist")
    }
}

impl Default for Wireguard {
    /// Returns the port of WireGuard's documentation.
    fn default() -> Self {
        Self { port: 51820 }
    }
}

fn state_file() -> PathBuf {
    STATE_FILE.into()
}
