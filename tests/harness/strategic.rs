//! Strategic merge patches of Nodes.

use serde_json::Value;

/// Merges a patch of annotations and conditions into a Node. A condition replaces the one of its type.
pub fn merge(object: &mut Value, patch: &Value) {
    let annotations = patch["metadata"]["annotations"].as_object();
    for (key, value) in annotations.into_iter().flatten() {
        object["metadata"]["annotations"][key] = value.clone();
    }
    let conditions = patch["status"]["conditions"].as_array();
    for new in conditions.into_iter().flatten() {
        let conditions = &mut object["status"]["conditions"];
        let mut all = conditions.as_array().cloned().unwrap_or_default();
        all.retain(|it| it["type"] != new["type"]);
        all.push(new.clone());
        *conditions = all.into();
    }
}
