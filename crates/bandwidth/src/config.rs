//! What was asked: the limits, from wherever they come.

use std::collections::BTreeMap;

use cni::{Error, Network};
use serde::Deserialize;

/// The first limit that somebody asks for, as key and value: the plugin's own keys come
/// before `runtimeConfig.bandwidth`, and that before the pod's annotations.
///
/// # Errors
/// Code 7: a value of the wrong type.
pub(crate) fn limit(network: &Network) -> Result<Option<(String, String)>, Error> {
    Ok(find(&network.config()?, &network.runtime_config()?))
}

/// Rates are bits a second, bursts bits; 0 stands for no limit.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Limits {
    ingress_rate: u64,
    ingress_burst: u64,
    egress_rate: u64,
    egress_burst: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    bandwidth: Option<Limits>,
    #[serde(rename = "io.kubernetes.cri.pod-annotations")]
    annotations: BTreeMap<String, String>,
}

fn find(own: &Limits, runtime: &RuntimeConfig) -> Option<(String, String)> {
    let annotated = ANNOTATIONS.into_iter().find_map(|key| {
        let value = runtime.annotations.get(key)?;
        Some((key.to_owned(), value.clone()))
    });
    let of_runtime = runtime
        .bandwidth
        .as_ref()
        .and_then(|limits| limits.first("runtimeConfig.bandwidth."));
    own.first("").or(of_runtime).or(annotated)
}

impl Limits {
    /// A burst limits nothing without its rate.
    fn first(&self, parent: &str) -> Option<(String, String)> {
        let rates = [
            ("ingressRate", self.ingress_rate),
            ("egressRate", self.egress_rate),
        ];
        let (key, rate) = rates.into_iter().find(|(_, rate)| *rate != 0)?;
        Some((format!("{parent}{key}"), rate.to_string()))
    }
}

/// Kubernetes quantities in bits a second.
const ANNOTATIONS: [&str; 2] = [
    "kubernetes.io/ingress-bandwidth",
    "kubernetes.io/egress-bandwidth",
];

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn key(own: &Value, runtime: &Value) -> Option<String> {
        let own = cni::json::read(own, "").unwrap().value;
        let runtime = cni::json::read(runtime, "runtimeConfig").unwrap().value;
        find(&own, &runtime).map(|(key, _)| key)
    }

    #[test]
    fn own_keys_come_before_the_runtimes_and_those_before_annotations() {
        let annotations = json!({"kubernetes.io/egress-bandwidth": "10M"});
        let runtime = json!({
            "bandwidth": {"EgressRate": 1000, "EgressBurst": 4_294_967_295_u64},
            "io.kubernetes.cri.pod-annotations": annotations,
        });
        let found = key(&json!({"ingressRate": 8}), &runtime);
        assert_eq!(found.as_deref(), Some("ingressRate"));
        assert_eq!(
            key(&json!({}), &runtime).as_deref(),
            Some("runtimeConfig.bandwidth.egressRate")
        );
        let annotated = json!({"io.kubernetes.cri.pod-annotations": annotations});
        assert_eq!(
            key(&json!({}), &annotated).as_deref(),
            Some("kubernetes.io/egress-bandwidth")
        );
    }

    #[test]
    fn nothing_is_limited_by_zeros_and_bursts_alone() {
        let zeros = json!({"bandwidth": {
            "ingressRate": 0, "ingressBurst": 34_359_738_359_u64, "egressRate": 0, "egressBurst": 0,
        }});
        assert_eq!(key(&json!({}), &zeros), None);
        assert_eq!(key(&json!({}), &json!({})), None);
        assert_eq!(key(&json!({}), &json!({"bandwidth": null})), None);
    }
}
