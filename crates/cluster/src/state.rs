//! What an agent knows of its cluster.

use std::io;
use std::path::Path;

use cni::files::{self, if_present};
use serde::{Deserialize, Serialize};

use crate::node::Nodes;
use crate::peers::Peers;

/// What the agent keeps in a file, for its next start and for `cnitool doctor`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct State {
    /// Name of this node.
    pub node: String,
    /// Whether another program makes the routes.
    pub has_other_routes: bool,
    /// Whether packets to pods of other nodes go through the WireGuard device alone.
    #[serde(default)]
    pub is_encrypted: bool,
    /// The nodes of the cluster.
    pub nodes: Nodes,
}

impl State {
    /// Reads the file `path`; `None` if there is none, because no agent has listed the nodes yet.
    ///
    /// # Errors
    /// It cannot be read, or is not one of an agent.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        let text = if_present(files::read(path))?;
        let state = text.map(|it| serde_json::from_slice(&it)).transpose();
        state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Returns the desired routes.
    pub fn peers(&self) -> Peers {
        if self.has_other_routes {
            return Peers::default();
        }
        if self.is_encrypted {
            return Peers::encrypted(&self.node, &self.nodes);
        }
        Peers::of(&self.node, &self.nodes)
    }
}

/// The file, unless the agent's configuration names another one. It survives a boot, because packets to
/// the pods of these nodes may not leave unencrypted until the API server answers.
pub const STATE_FILE: &str = "/var/lib/cni/cluster/nodes.json";
