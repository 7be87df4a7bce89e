//! Routes of a node to the pods of the other nodes of a Kubernetes cluster.
//!
//! [`Peers`] is the desired state, a pure function of the cluster's nodes. [`Kernel`] applies it
//! over rtnetlink. [`Changes`] reports when another program or the kernel may have changed it.
//!
//! Routes of this crate have the protocol [`PROTOCOL`]. Other routes stay as they are.

mod apply;
mod changes;
mod device;
mod generic;
mod kernel;
mod key;
mod mesh;
mod message;
mod neighbours;
mod node;
mod peers;
mod problem;
mod routes;
mod state;
mod tunnel;
mod underlay;
mod way;
mod wireguard;

pub use self::apply::{Applied, Others};
pub use self::changes::{Changes, Concerns};
pub use self::kernel::Kernel;
pub use self::key::{InvalidKey, PrivateKey, PublicKey};
pub use self::mesh::{DEVICE, Mesh, Remote};
pub use self::message::PROTOCOL;
pub use self::node::{Node, Nodes};
pub use self::peers::{Peer, Peers};
pub use self::problem::Problem;
pub use self::state::{STATE_FILE, State};
pub use self::tunnel::{Mac, NAMES, Tunnel, Vxlan, mac};
pub use self::way::{DirectRoute, Way};
