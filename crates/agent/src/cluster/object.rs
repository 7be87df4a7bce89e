//! A Node object of the Kubernetes API, reduced to what routes need while it is parsed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::str::FromStr;

use cluster::{Node, PublicKey};
use k8s_openapi::ClusterResourceScope;
use kube::Resource;
use kube::core::ObjectMeta;
use serde::{Deserialize, Deserializer};

/// A Node object. A real one has hundreds of further values, which are skipped.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct NodeObject {
    #[serde(deserialize_with = "reduced")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Status {
    addresses: Vec<Address>,
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Deserialize)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl NodeObject {
    /// Returns whether the object says that its node has a network for pods.
    pub fn has_network(&self) -> bool {
        let mut conditions = self.status.conditions.iter();
        conditions.any(|it| it.kind == NETWORK_UNAVAILABLE && it.status == "False")
    }

    /// Returns the node's name and what routes need of it.
    pub fn node(self) -> (String, Node) {
        let mut invalid = Vec::new();
        let addresses = self.status.addresses.into_iter();
        let addresses = addresses.filter(|it| it.kind == "InternalIP");
        let name = self.metadata.name.unwrap_or_default();
        let annotations = self.metadata.annotations.into_iter().flatten();
        let mut announced = annotations.map(|it| it.1);
        let key = announced.find_map(|it| PublicKey::announced(&it, &name).ok());
        let node = Node {
            key,
            pod_cidrs: parsed(self.spec.pod_cidrs, &mut invalid),
            addresses: parsed(addresses.map(|it| it.address), &mut invalid),
            invalid,
        };
        (name, node)
    }
}

/// Returns the parsed texts. Moves those that cannot be parsed to `invalid`.
fn parsed<T: FromStr>(
    texts: impl IntoIterator<Item = String>,
    invalid: &mut Vec<String>,
) -> Vec<T> {
    let mut values = Vec::new();
    for text in texts {
        match text.parse() {
            Ok(value) => values.push(value),
            Err(_) => invalid.push(text),
        }
    }
    values
}

/// Reads the two values that a watch needs and the node's key, and skips the managed fields, which are
/// the largest part of many objects.
fn reduced<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        name: String,
        resource_version: Option<String>,
        #[serde(default)]
        annotations: Annotations,
    }
    #[derive(Default, Deserialize)]
    struct Annotations {
        #[serde(rename = "cni-cluster/wireguard-public-key")]
        key: Option<String>,
    }
    let metadata = Metadata::deserialize(from)?;
    let key = metadata.annotations.key;
    Ok(ObjectMeta {
        name: Some(metadata.name),
        resource_version: metadata.resource_version,
        annotations: key.map(|it| BTreeMap::from([(KEY.to_owned(), it)])),
        ..ObjectMeta::default()
    })
}

impl Resource for NodeObject {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Node".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "nodes".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The annotation with the public key of a node.
pub(super) const KEY: &str = "cni-cluster/wireguard-public-key";

/// The condition of a node without a network for pods.
pub(super) const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";

#[cfg(test)]
mod tests {
    use cluster::PrivateKey;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn key_is_read_among_other_annotations() {
        let node = |annotations: Value| {
            let metadata = json!({"name": "a", "annotations": annotations});
            let object: NodeObject = serde_json::from_value(json!({"metadata": metadata})).unwrap();
            object.node().1
        };
        let key = PrivateKey::random().unwrap();
        let with_key = node(json!({"a": "b", KEY: key.announcement("a")}));
        assert_eq!(with_key.key, Some(key.public()));
        assert_eq!(node(json!({"a": "b"})), Node::default());
        let copied = node(json!({KEY: key.announcement("b")}));
        assert_eq!(copied, Node::default());
    }
}
