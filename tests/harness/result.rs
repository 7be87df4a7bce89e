//! Interfaces of a result, by their place in its list.

use serde_json::Value;

/// Returns the name of the host's end in a result of ptp.
pub fn ptp_host_link(result: &Value) -> &str {
    result["interfaces"][0]["name"].as_str().unwrap()
}

/// Returns the name of the ifb, the last interface in a result of bandwidth.
pub fn ifb_of(result: &Value) -> &str {
    let last = result["interfaces"].as_array().unwrap().last().unwrap();
    last["name"].as_str().unwrap()
}
