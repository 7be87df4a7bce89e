//! An agent that repairs, and the rules that it restores.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Agent, Host, Place as _, eventually, http};

/// Longer than the shortest time between two RELOADs.
pub const PERIOD: Duration = Duration::from_millis(1100);

/// Returns the sections of an agent that repairs and serves metrics.
pub fn sections() -> Value {
    json!({"repair": {}, "metrics": {"listen": "127.0.0.1:9799"}})
}

/// Starts an agent, and returns after its first RELOAD, when another one may follow at once.
pub fn agent(host: &Host, sections: &Value) -> Agent {
    let agent = Agent::start(host, sections);
    agent.says("reloaded: ");
    assert!(eventually(|| number("repair_reloads_total") == Some(1)));
    pass(PERIOD);
    agent
}

/// Returns the value of a metric of the agent.
pub fn number(name: &str) -> Option<u64> {
    http::value(
        &http::get(9799, "/metrics").ok()?,
        &format!("cni_agent_{name}"),
    )
}

/// Waits until the metrics show `wanted`. They are up to two seconds old.
#[track_caller]
pub fn counts(name: &str, wanted: u64) {
    let is_shown = eventually(|| number(name) == Some(wanted));
    assert!(is_shown, "{name}: {:?}", number(name));
}

/// Returns the agent's answer of `/healthz`, without the headers.
pub fn health() -> String {
    let answer = http::get(9799, "/healthz").unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Lets this time pass. That the agent does nothing has no event.
pub fn pass(time: Duration) {
    #[expect(
        clippy::disallowed_methods,
        reason = "the agent's own pauses and inaction are what is tested"
    )]
    thread::sleep(time);
}

/// Runs `nft flush ruleset`.
pub fn flush(host: &Host) {
    host.run("nft", &["flush", "ruleset"]);
}

/// Returns all rules and elements of the suite, in an order of their own, without the agent's own
/// table.
pub fn rules(host: &Host) -> Vec<String> {
    let tables = host.run("nft", &["list", "tables"]);
    let mut objects = Vec::new();
    // nft 1.0.6 reads freed memory if it lists a table with a flag as JSON.
    for table in tables.lines().filter(|it| !it.contains(GUARD)) {
        let list = format!("list {table}");
        let rules = host.run("nft", &["--json", "--stateless", &list]);
        let rules: Value = serde_json::from_str(&rules).unwrap();
        objects.extend_from_slice(rules["nftables"].as_array().unwrap());
    }
    for object in &mut objects {
        for (_, content) in object.as_object_mut().unwrap() {
            let content = content.as_object_mut().unwrap();
            content.remove("handle");
            if let Some(elements) = content.get_mut("elem").and_then(Value::as_array_mut) {
                elements.sort_by_key(Value::to_string);
            }
        }
    }
    let mut objects: Vec<_> = objects.iter().map(Value::to_string).collect();
    objects.sort();
    objects
}

/// Waits until the rules are `wanted`, and returns how long that took.
#[track_caller]
pub fn restored(host: &Host, wanted: &[String]) -> Duration {
    let start = Instant::now();
    let is_restored = eventually(|| rules(host) == wanted);
    assert!(is_restored, "{:#?}", rules(host));
    start.elapsed()
}

/// Start of the name of the agent's own table.
pub const GUARD: &str = "cni-localhost-";
