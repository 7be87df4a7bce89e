//! What dead sandboxes left, and a cni-agent that collects it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::cri::Cri;
use crate::{Agent, Host, Invocation, Sandbox, Tool, eventually};

/// Returns the socket of the fake runtime.
pub fn socket(host: &Host) -> PathBuf {
    host.dir().join("runtime/cri.sock")
}

/// Starts an agent that asks the runtime at [`socket`].
pub fn agent(host: &Host) -> Agent {
    agent_with(host, &json!({"runtimeSocket": socket(host)}))
}

/// Starts an agent with this section.
pub fn agent_with(host: &Host, gc: &Value) -> Agent {
    let agent = Agent::start(host, &json!({ "gc": gc }));
    agent.is_up();
    agent
}

/// Runs a whole round. The second round does not begin before the first one has ended.
#[track_caller]
pub fn round(agent: &Agent, cri: &Cri) {
    let before = cri.lists();
    for count in 1..=2 {
        agent.signal(Signal::SIGHUP);
        let is_asked = eventually(|| cri.lists() >= before + count);
        assert!(is_asked, "{}", agent.log());
    }
}

/// Makes every lease below `directory` an hour old.
pub fn age(directory: &Path) {
    for network in fs::read_dir(directory).unwrap() {
        for file in fs::read_dir(network.unwrap().path()).unwrap() {
            let file = File::open(file.unwrap().path()).unwrap();
            let hour_ago = SystemTime::now() - Duration::from_hours(1);
            file.set_modified(hour_ago).unwrap();
        }
    }
}

/// Creates an old lease of the network `pods`, of a container that never existed here.
pub fn lease_of(host: &Host, container: &str, address: &str) {
    let pods = host.lease_dir().join("pods");
    fs::create_dir_all(&pods).unwrap();
    let new = pods.join("new");
    fs::write(&new, format!("{container}\r\neth0")).unwrap();
    let hour_ago = SystemTime::now() - Duration::from_hours(1);
    File::open(&new).unwrap().set_modified(hour_ago).unwrap();
    fs::rename(new, pods.join(address)).unwrap();
}

/// Creates an old lease of [`STALE`].
pub fn stale_lease(host: &Host) {
    lease_of(host, "gone", STALE);
}

/// An address of the network `pods`.
pub const STALE: &str = "10.1.0.200";

/// Returns whether [`stale_lease`] is there.
pub fn has_stale_lease(host: &Host) -> bool {
    host.leases("pods").contains_key(STALE)
}

/// Runs ADD with a cache where the agent does not look.
pub fn add_by_multus(tool: &Tool<'_>, pod: &Sandbox) {
    let add = tool.on("add", "pods", pod);
    add.env("CNI_CACHE_DIR", "/var/lib/other").ok();
}

/// Returns a run of the network's first plugin.
pub fn bridge(host: &Host) -> Invocation {
    let list = fs::read(host.dir().join("net.d/pods.conflist")).unwrap();
    let list: Value = serde_json::from_slice(&list).unwrap();
    let mut config = list["plugins"][0].clone();
    config["name"] = list["name"].clone();
    config["cniVersion"] = list["cniVersion"].clone();
    host.plugin("bridge").config(&config)
}

/// Returns the network `pods` with a live pod, so that links show what lives.
pub fn with_a_pod(host: &Host) -> (Tool<'_>, Sandbox) {
    let tool = host.pods();
    let pod = host.sandbox("live");
    tool.add("pods", &pod, &[]);
    (tool, pod)
}
