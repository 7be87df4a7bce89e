//! Runtimes whose /run cannot be written, or which see one of their own each. What plugins decide does not depend
//! on it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};
use tests::traffic::tcp_by_port;
use tests::{Chain, Host, Invocation, Network, Place as _, Removal, Sandbox, at_once};

/// Not in /run.
const LEASES: &str = "/var/lib/leases";

/// The network `pods` of these plugins.
fn chain<'h>(host: &'h Host, plugins: &[&str]) -> Chain<'h> {
    Chain::new(host, plugins).with("bridge", "ipam.dataDir", &json!(LEASES))
}

#[track_caller]
fn expect_nothing_left(host: &Host) {
    assert_eq!(host.links(), ["cni0", "lo"]);
    let rules = host.run("nft", &["list", "ruleset"]);
    assert!(!rules.contains("cni:"), "{rules}");
    let files = fs::read_dir(Path::new(LEASES).join("pods")).unwrap();
    let mut names = files.map(|it| it.unwrap().file_name().into_string().unwrap());
    assert!(!names.any(|it| it.starts_with("10.1.") || it.starts_with("fd00:")));
}

/// ADD, CHECK and DEL of `bridge` with `host-local`, and of `bandwidth`, each run by `under` and with a line for the
/// log at most, and one about the marker of the boot.
fn live_and_end(host: &Host, pod: &Sandbox, under: impl Fn(Invocation) -> Invocation) {
    let chain = chain(host, &["bridge", "bandwidth"]);
    let ok = |call: Invocation| {
        let outcome = under(call).run();
        let is_other = |line: &&str| !line.contains("host-local-boot");
        let others = outcome.stderr.lines().filter(is_other).count();
        assert!(others <= 1, "{outcome:#?}");
        outcome.ok()
    };
    let mut result = Value::Null;
    for place in 0..chain.len() {
        result = ok(chain.call(place, "ADD", (pod, &result)));
    }
    for place in 0..chain.len() {
        ok(chain.call(place, "CHECK", (pod, &result)));
    }
    assert!(pod.pings("10.1.0.1"));
    assert!(host.run("nft", &["list", "ruleset"]).contains("limit rate"));
    for place in chain.order(Removal::Del) {
        ok(chain.removal(place, Removal::Del, (pod, &result)));
    }
    assert_eq!(pod.links(), ["lo"]);
    expect_nothing_left(host);
}

#[test]
fn pods_attach_and_end_where_run_is_read_only() {
    let host = Host::new();
    let pod = host.sandbox("a");
    host.read_only("/run");
    assert!(fs::create_dir("/run/cni").is_err());
    live_and_end(&host, &pod, |call| call);
}

/// As in a user namespace whose root has no right to the node's /run: `unshare -Urnm`.
#[test]
fn pods_attach_and_end_where_run_is_not_to_be_written() {
    let host = Host::new();
    let pod = host.sandbox("a");
    fs::set_permissions("/run", Permissions::from_mode(0o555)).unwrap();
    let bounds = "--bounding-set=-dac_override,-dac_read_search";
    let without = ["setpriv", bounds, "--inh-caps=-all"].map(str::to_owned);
    let tries = host.program(Path::new("/bin/mkdir")).argument("/run/cni");
    let refused = tries.under(&without).run();
    assert!(refused.stderr.contains("Permission denied"), "{refused:#?}");
    live_and_end(&host, &pod, |call| call.under(&without));
}

/// The runtime calls DEL and GC until they succeed. No ADD can have written a record there.
#[test]
fn del_and_gc_succeed_although_a_file_is_in_place_of_run_cni() {
    let host = Host::new();
    let pod = host.sandbox("a");
    let result = host.bridge().add(&pod);
    fs::remove_dir_all("/run/cni").unwrap();
    fs::write("/run/cni", "").unwrap();
    let network = host.bandwidth().with("prevResult", result);
    let firewall = network.clone().with("type", "firewall");
    let mappings = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let portmap = network.with("type", "portmap");
    let portmap = portmap.with("runtimeConfig.portMappings", mappings);
    let refused = portmap.on("ADD", &pod).error();
    refused.expect(100, &["/run/cni/portmap", "write below /run"]);
    let rules = || host.run("nft", &["list", "ruleset"]);
    for verb in ["DEL", "GC"] {
        let end = |network: &Network<'_>| match verb {
            "DEL" => network.on("DEL", &pod).ok(),
            _ => network.gc(&[]).ok(),
        };
        firewall.add(&pod);
        assert!(rules().contains("cni:pods/a/eth0"));
        end(&firewall);
        assert!(!rules().contains("cni:pods/a/eth0"));
        end(&portmap);
    }
}

/// `call` in a mount namespace whose /run is the directory `run`, but for the sandboxes.
fn seen_from(run: &str, call: Invocation) -> Invocation {
    let enter = "mkdir -p $0/netns && mount --rbind /run/netns $0/netns && mount --rbind $0 /run && exec \"$@\"";
    let words = ["unshare", "--mount", "sh", "-c", enter, run];
    call.under(&words.map(str::to_owned))
}

/// A pod of one of two runtimes.
struct Pod<'h> {
    run: &'static str,
    sandbox: Sandbox,
    chain: Chain<'h>,
    port: u16,
}

impl<'h> Pod<'h> {
    fn new(host: &'h Host, number: u16) -> Self {
        let run = ["/var/lib/run-a", "/var/lib/run-b"][usize::from(number % 2)];
        let chain = chain(host, &["bridge", "portmap", "bandwidth"]);
        let port = 8000 + number;
        let mapping = json!([{"hostIP": "192.0.2.1", "hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
        Self {
            run,
            sandbox: host.sandbox(&format!("pod{number}")),
            chain: chain.with("portmap", "runtimeConfig.portMappings", &mapping),
            port,
        }
    }

    fn add(&self) -> Value {
        (0..self.chain.len()).fold(Value::Null, |before, place| {
            let call = self.chain.call(place, "ADD", (&self.sandbox, &before));
            seen_from(self.run, call).ok()
        })
    }

    fn check(&self, result: &Value) {
        for place in 0..self.chain.len() {
            let call = self.chain.call(place, "CHECK", (&self.sandbox, result));
            seen_from(self.run, call).ok();
        }
    }

    fn del(&self, result: &Value) {
        for place in self.chain.order(Removal::Del) {
            let on = (&self.sandbox, result);
            let call = self.chain.removal(place, Removal::Del, on);
            seen_from(self.run, call).ok();
        }
    }
}

#[test]
fn runtimes_that_see_different_runs_share_a_bridge_and_its_tables() {
    let host = Host::new();
    let outside = host.outside();
    let pods: Vec<_> = (0..8).map(|number| Pod::new(&host, number)).collect();
    let results = at_once(&pods, |pod| {
        for _ in 0..2 {
            pod.del(&pod.add());
        }
        pod.add()
    });
    let attached: Vec<_> = pods.iter().zip(&results).collect();
    let is_served = |(pod, result): &(&Pod<'_>, &Value)| {
        pod.check(result);
        let by_port = format!("192.0.2.1:{}", pod.port);
        tcp_by_port(&outside, &by_port, (&pod.sandbox, 80)).is_some()
    };
    assert!(attached.iter().all(is_served));
    // All of one of the two end while the others live.
    let (ending, staying): (Vec<_>, Vec<_>) =
        attached.iter().partition(|(pod, _)| pod.run.ends_with('a'));
    at_once(&ending, |(pod, result)| pod.del(result));
    assert!(staying.iter().all(is_served));
    at_once(&staying, |(pod, result)| pod.del(result));
    host.ip("link delete uplink");
    expect_nothing_left(&host);
}
