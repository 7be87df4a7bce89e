//! Times cnitool reload of many pods, after a flush of all rules and with complete rules.
//!
//! The reference has no such command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use tests::{Host, Place as _, Sandbox, at_once};

use crate::report::Report;

const PODS: u16 = 500;

/// Concurrent ADDs.
const AT_ONCE: usize = 4;

/// Times pods with masquerading and MAC checks, with ports of TCP only and with one of UDP.
pub fn run(host: &Host, ours: &Path, rounds: u32, report: &mut Report) {
    host.outside();
    let tool = Tool {
        ours: ours.to_owned(),
        networks: host.dir().join("reload"),
    };
    let title = format!("reload of {PODS} pods, medians of {rounds} rounds");
    println!("\n{title}, milliseconds\n");
    let mut rows = Vec::new();
    println!(
        "{:24}{:>9}{:>9}",
        "two ports of each", "flushed", "in place"
    );
    for (subnet, second) in [(1, "tcp"), (2, "udp")] {
        let name = format!("with-{second}");
        tool.configure(host, &name, subnet);
        let pods: Vec<_> = (0..PODS)
            .map(|pod| (pod, host.sandbox(&format!("{name}-{pod}"))))
            .collect();
        for some in pods.chunks(AT_ONCE) {
            at_once(some, |pod| tool.add(&name, pod, second));
        }
        let [mut flushed, mut in_place] = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            host.run("nft", &["flush", "ruleset"]);
            flushed.push(tool.reload(&name));
            in_place.push(tool.reload(&name));
        }
        let (case, flushed, in_place) = (
            format!("tcp and {second}"),
            median(flushed),
            median(in_place),
        );
        println!("{case:24}{flushed:>9.0}{in_place:>9.0}");
        rows.push(json!({"case": case, "flushed": flushed, "in place": in_place}));
    }
    report.values(&title, "ms", &rows);
}

struct Tool {
    ours: PathBuf,
    networks: PathBuf,
}

impl Tool {
    fn configure(&self, host: &Host, name: &str, number: u8) {
        let ranges = json!([[{"subnet": format!("10.{}.0.0/22", 100 + number)}]]);
        let list = json!({"cniVersion": "1.1.0", "name": name, "plugins": [
            {"type": "bridge", "bridge": format!("reload{number}"), "isDefaultGateway": true,
             "ipMasq": true, "macspoofchk": true,
             "ipam": {"type": "host-local", "ranges": ranges, "dataDir": host.lease_dir()}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ]});
        fs::create_dir_all(&self.networks).unwrap();
        let file = self.networks.join(name).with_extension("conflist");
        fs::write(file, list.to_string()).unwrap();
    }

    fn command(&self, words: &[&str], ports: &Value) -> Command {
        let mut command = Command::new(self.ours.join("cnitool"));
        command.args(words).env_clear();
        command.env("CNI_PATH", &self.ours);
        command.env("NETCONFPATH", &self.networks);
        command.env("CAP_ARGS", ports.to_string());
        command.stdout(Stdio::null()).stderr(Stdio::inherit());
        command
    }

    fn add(&self, name: &str, (pod, sandbox): &(u16, Sandbox), second: &str) {
        let port = |protocol: &str, container: u16| {
            let host = if second == "tcp" { 10_000 } else { 20_000 }
                + 2 * pod
                + u16::from(container == 53);
            json!({"hostPort": host, "containerPort": container, "protocol": protocol})
        };
        let ports = json!({"portMappings": [port("tcp", 80), port(second, 53)]});
        let words = ["add", name, sandbox.path().to_str().unwrap()];
        let status = self.command(&words, &ports).status().unwrap();
        assert!(status.success(), "ADD of {name} {pod}");
    }

    /// Returns the time of a reload in milliseconds.
    fn reload(&self, name: &str) -> f64 {
        let mut command = self.command(&["reload", name], &json!({}));
        let start = Instant::now();
        let status = command.status().unwrap();
        let time = start.elapsed();
        assert!(status.success(), "reload of {name}");
        time.as_secs_f64() * 1000.0
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
