//! The nodes as the API server last described them.

use cluster::{Nodes, PublicKey};
use kube::Resource as _;

use super::api::Event;
use super::key::Announcements;
use super::object::NodeObject;

/// The nodes of the cluster, kept up to date by events.
#[derive(Default)]
pub(super) struct Watched {
    /// The nodes. Until [`Self::is_current`], those that an earlier agent knew.
    pub nodes: Nodes,
    /// Whether they are those that the API server has listed to this agent.
    pub is_current: bool,
    /// Whether the API server's list lacks this node. It is of another cluster or of one that is being
    /// restored, or the kubelet has not registered yet. So [`Self::nodes`] stay as they were.
    pub lacks_own: bool,
    /// Whether this node's object says that the node has a network for pods.
    pub says_network: bool,
    /// Name of this node.
    own: String,
    /// The part of a new list that has arrived, or the whole list while [`Self::lacks_own`].
    arriving: Nodes,
    is_saved: bool,
}

impl Watched {
    /// Starts with the nodes that an earlier agent knew.
    pub fn of(own: String, nodes: Nodes) -> Self {
        Self {
            nodes,
            own,
            ..Self::default()
        }
    }

    /// Applies an event. Returns whether the nodes have changed, or became current.
    pub fn take(&mut self, event: Event) -> bool {
        let is_change = match event {
            Event::Init => {
                self.arriving.clear();
                false
            }
            Event::InitApply(object) => {
                let is_change = self.take_condition(&object);
                self.arriving.extend([object.node()]);
                is_change
            }
            Event::InitDone => self.accept(),
            Event::Apply(object) => {
                let says_other = self.take_condition(&object);
                let (name, node) = object.node();
                let is_new = self.listed().insert(name, node.clone()) != Some(node);
                (is_new && (!self.lacks_own || self.accept())) || says_other
            }
            Event::Delete(object) => self.delete(&object.node().0),
        };
        self.is_saved &= !is_change;
        is_change
    }

    /// Notes what the object says, if it is this node's. Returns whether that is new.
    fn take_condition(&mut self, object: &NodeObject) -> bool {
        if object.meta().name.as_deref() != Some(&self.own) {
            return false;
        }
        let before = std::mem::replace(&mut self.says_network, object.has_network());
        before != self.says_network
    }

    /// Deletes a node. Without this node, the nodes stay as they were until it is created again.
    fn delete(&mut self, name: &str) -> bool {
        if name != self.own || self.lacks_own {
            return self.listed().remove(name).is_some();
        }
        self.arriving.clone_from(&self.nodes);
        self.arriving.remove(name);
        self.accept()
    }

    /// Returns the nodes of the API server's list.
    fn listed(&mut self) -> &mut Nodes {
        if self.lacks_own {
            &mut self.arriving
        } else {
            &mut self.nodes
        }
    }

    /// Takes the list that has arrived, if it has this node. Returns whether something changed.
    fn accept(&mut self) -> bool {
        let was_current = self.is_current;
        self.lacks_own = !self.arriving.contains_key(&self.own);
        self.is_current = !self.lacks_own;
        if self.lacks_own {
            return true;
        }
        let list = std::mem::take(&mut self.arriving);
        let before = std::mem::replace(&mut self.nodes, list);
        !was_current || before != self.nodes
    }

    /// Returns the WireGuard key of this node that the API server has.
    pub fn key(&self) -> Option<PublicKey> {
        let own = self.nodes.get(&self.own);
        own.filter(|_| self.is_current)?.key
    }

    /// Returns the WireGuard keys that the API server has. Of two nodes that announced the same one, only
    /// the second name has to find another key.
    pub fn announcements(&self) -> Announcements {
        let own = self.key();
        let others = self.nodes.iter().filter(|_| self.is_current);
        let others = others.filter(|(name, _)| **name != self.own);
        let others = others.filter(|(name, it)| it.key != own || **name < self.own);
        Announcements {
            own,
            others: others.filter_map(|it| it.1.key).collect(),
        }
    }

    /// Returns a copy of the nodes, if they have changed since [`Self::set_saved`].
    pub fn unsaved(&self) -> Option<Nodes> {
        (!self.is_saved).then(|| self.nodes.clone())
    }

    /// Remembers that the current nodes are saved.
    pub fn set_saved(&mut self) {
        self.is_saved = true;
    }
}
