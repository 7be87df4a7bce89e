//! Times host-local with many leased addresses.
//!
//! STATUS and GC are timed on our side only: the reference has them from 1.5.0 on.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tests::Host;

use crate::report::Report;
use crate::timing::{Call, Side};

/// Numbers of leases before the timed one.
const SIZES: [u32; 4] = [1, 1_000, 10_000, 60_000];

/// Rounds; the reference needs a second per round at the largest size.
const ROUNDS: u32 = 20;

/// Rounds of our side per round of the reference, whose times vary less.
const TIMES_OURS: u32 = 10;

/// Times ADD and DEL at every size. The directories exist before, and our plugin has built its
/// index.
pub fn run(host: &Host, mut sides: [Side; 2], report: &mut Report) {
    for held in SIZES {
        for side in &sides {
            fill(&directory(host, side, held).join("pods"), held);
        }
        for side in &mut sides {
            round(host, side, held);
            side.forget();
        }
    }
    // Sizes alternate as well, so that other load on the machine affects all of them.
    for _ in 0..ROUNDS {
        for (side, times) in sides.iter_mut().zip([TIMES_OURS, 1]) {
            for held in SIZES.repeat(times as usize) {
                round(host, side, held);
            }
        }
    }
    let [ours, _] = &mut sides;
    for held in SIZES.repeat(ROUNDS as usize) {
        status_and_gc(host, ours, held);
    }
    let title = format!(
        "host-local by leases held, {} rounds of ours and {ROUNDS} of the reference in turns",
        ROUNDS * TIMES_OURS
    );
    report.times(&title, &sides);
}

fn round(host: &Host, side: &mut Side, held: u32) {
    let mut request = request(&directory(host, side, held));
    let mut time = |verb: &str, request: &Value| {
        let call = Call {
            plugin: "host-local",
            verb,
            container: "one-more",
            netns: Path::new("/run/netns/never-was"),
            args: "",
        };
        side.time(&format!("{held} leases, {verb}"), &call, request)
    };
    let result = time("ADD", &request);
    request["prevResult"] = serde_json::from_slice(&result).unwrap();
    time("CHECK", &request);
    time("DEL", &request);
}

/// Times STATUS of a full set, and GC with all holders listed.
fn status_and_gc(host: &Host, side: &mut Side, held: u32) {
    let mut request = request(&directory(host, side, held));
    request["cniVersion"] = "1.1.0".into();
    request["ipam"]["ranges"][0][0]["rangeEnd"] = address(held - 1).into();
    let mut time = |verb: &str, request: &Value| {
        let call = Call {
            plugin: "host-local",
            verb,
            container: "",
            netns: Path::new(""),
            args: "",
        };
        side.time(&format!("{held} leases, {verb}"), &call, request);
    };
    time("STATUS", &request);
    let listed = (0..held).map(|number| json!({"containerID": id(number), "ifname": "eth0"}));
    request["cni.dev/valid-attachments"] = listed.collect();
    time("GC", &request);
}

fn request(data_dir: &Path) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "type": "host-local",
        "ipam": {"type": "host-local", "dataDir": data_dir, "ranges": [[{"subnet": "10.200.0.0/16"}]]},
    })
}

fn directory(host: &Host, side: &Side, held: u32) -> PathBuf {
    host.dir().join(format!("{}-{held}", side.name))
}

/// Writes the files that the reference leaves after this many ADDs.
fn fill(directory: &Path, held: u32) {
    fs::create_dir_all(directory).unwrap();
    for number in 0..held {
        let address = address(number);
        fs::write(directory.join(&address), format!("{}\r\neth0", id(number))).unwrap();
        fs::write(directory.join("last_reserved_ip.0"), &address).unwrap();
    }
}

/// Returns the address of a lease.
fn address(number: u32) -> String {
    let first = u32::from(Ipv4Addr::new(10, 200, 0, 2));
    Ipv4Addr::from(first + number).to_string()
}

/// Returns the holder's container ID, as long as a runtime's.
fn id(number: u32) -> String {
    format!("{number:064x}")
}
