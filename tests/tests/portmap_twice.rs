//! portmap: two attachments with one address, as when a runtime recreates a pod before it deletes
//! the old one. The elements that masquerade clients of this address can have only one owner.

use std::fs;

use serde_json::{Value, json};
use tests::faults::strace;
use tests::repair::{PERIOD, agent, flush, number, pass, sections};
use tests::traffic::tcp_by_port;
use tests::{Host, Invocation, Network, Place as _, Ports, Sandbox, Tool, eventually};

/// A pod whose port 80 is forwarded. All pods have one address.
struct Pod<'h> {
    host: &'h Host,
    sandbox: Sandbox,
    port: u16,
    network: Network<'h>,
    portmap: Network<'h>,
}

impl<'h> Pod<'h> {
    /// Creates a pod of ptp, and forwards no port yet.
    fn new(host: &'h Host, name: &str, port: u16) -> Self {
        Self::of(&host.ptp(), (host, name, port))
    }

    /// Creates a pod of `network`, and forwards no port yet.
    fn of(network: &Network<'h>, (host, name, port): (&'h Host, &str, u16)) -> Self {
        let (network, sandbox) = (network.clone().with_one_address(), host.sandbox(name));
        let portmap = host.ports().portmap().clone();
        let portmap = portmap.with("prevResult", network.add(&sandbox));
        Self {
            host,
            sandbox,
            port,
            network,
            portmap: Ports::asking(&portmap, &[&format!("{port}:80")]),
        }
    }

    fn added(self) -> Self {
        self.call("ADD").ok();
        self
    }

    fn call(&self, verb: &str) -> Invocation {
        self.portmap.on(verb, &self.sandbox)
    }

    /// Deletes the attachment of portmap, then the pair.
    fn end(&self) {
        self.call("DEL").ok();
        self.network.del(&self.sandbox);
    }

    /// Checks that the pod reaches its own port in both families, and that a client at 127.0.0.1
    /// does.
    #[track_caller]
    fn serves_itself_and_localhost(&self) {
        let (port, at) = (self.port, (&self.sandbox, 80));
        let itself = ["192.0.2.1", "[2001:db8::1]"]
            .map(|it| tcp_by_port(&self.sandbox, &format!("{it}:{port}"), at).is_some());
        let localhost = tcp_by_port(self.host, &format!("127.0.0.1:{port}"), at).is_some();
        let name = self.sandbox.name();
        assert_eq!((itself, localhost), ([true; 2], true), "{name}");
    }

    fn record(&self) -> String {
        let name = self.sandbox.name();
        fs::read_to_string(format!("/run/cni/portmap/cni:pods:{name}:eth0")).unwrap()
    }
}

/// Returns the pods `old`, which was added first, and `new`.
fn both(host: &Host) -> [Pod<'_>; 2] {
    [("old", 8080), ("new", 9090)].map(|(name, port)| Pod::new(host, name, port).added())
}

/// Checks that the pod with this name, and no other, is masqueraded in each set.
#[track_caller]
fn is_masqueraded(host: &Host, name: &str) {
    assert_eq!(owners(host), [name; 3]);
}

/// Returns the owners of the elements that masquerade, in the order of the sets.
fn owners(host: &Host) -> Vec<String> {
    let sets = ["pairs4", "pairs6", "localhost4"].map(|set| {
        let set = format!("masquerade-{set}");
        host.run("nft", &["list", "set", "inet", "cni-portmap", &set])
    });
    let listed = sets.concat();
    let comments = listed.split("comment \"cni:pods/").skip(1);
    let owners = comments.filter_map(|it| it.split('/').next());
    owners.map(str::to_owned).collect()
}

fn rules(host: &Host) -> String {
    host.run("nft", &["list", "table", "inet", "cni-portmap"])
}

/// The pods of a bridge have the same link of the host, those of ptp have not.
#[test]
fn the_old_pod_is_masqueraded_again_when_the_new_one_is_deleted() {
    let networks: [fn(&Host) -> Network<'_>; 2] = [Host::ptp, |host| {
        host.bridge()
            .with("isDefaultGateway", true)
            .with("hairpinMode", true)
    }];
    for network in networks {
        let host = Host::new();
        let _outside = host.outside_of_both_families();
        let [old, new] = [("old", 8080), ("new", 9090)]
            .map(|(name, port)| Pod::of(&network(&host), (&host, name, port)).added());
        is_masqueraded(&host, "new");
        new.end();
        old.serves_itself_and_localhost();
        old.call("CHECK").ok();
        old.end();
        let left = rules(&host);
        assert!(!left.contains("cni:"), "{left}");
        assert_eq!(fs::read_dir("/run/cni/portmap").unwrap().count(), 0);
    }
}

#[test]
fn masq_all_holds_for_the_old_pod_again_when_gc_removes_the_new_one() {
    let host = Host::new();
    let outside = host.outside_of_both_families();
    let [old, new] = [("old", 8080), ("new", 9090)].map(|(name, port)| {
        let mut pod = Pod::new(&host, name, port);
        pod.portmap = pod.portmap.with("masqAll", true);
        pod.added()
    });
    old.portmap.gc(&[&old.sandbox]).ok();
    new.network.del(&new.sandbox);
    let seen = ["192.0.2.1", "[2001:db8::1]"]
        .map(|it| tcp_by_port(&outside, &format!("{it}:8080"), (&old.sandbox, 80)));
    assert_eq!(seen, ["10.1.0.1", "fd00:1::1"].map(|it| it.parse().ok()));
    old.call("CHECK").ok();
}

/// Each message of the new pod's ADD, and each write, fails once or is the last one.
#[test]
fn the_old_pod_is_masqueraded_after_an_add_that_fails_or_is_killed() {
    let host = Host::new();
    let old = Pod::new(&host, "old", 8080).added();
    let new = Pod::new(&host, "new", 9090);
    let before = old.record();
    for (call, harm) in [
        ("sendto", "error=ENOMEM"),
        ("sendto", "signal=KILL"),
        ("write", "signal=KILL"),
    ] {
        let mut is_done = false;
        for number in 1..100 {
            let outcome = faulty(&new, &format!("{call}:{harm}:when={number}")).run();
            is_done = outcome.status.success();
            if is_done || harm == "signal=KILL" {
                new.call("DEL").ok();
            }
            is_masqueraded(&host, "old");
            assert!(!rules(&host).contains("cni:pods/new"), "{outcome:?}");
            if is_done {
                break;
            }
        }
        assert!(is_done, "{call} {harm}");
    }
    assert_eq!(old.record(), before);
}

/// Returns ADD of the pod with this fault of strace(1).
fn faulty(pod: &Pod<'_>, inject: &str) -> Invocation {
    let (call, _) = inject.split_once(':').unwrap();
    let mut words = strace(&pod.host.dir().join("trace"));
    let fault = format!("-e trace={call} -e inject={inject}");
    words.extend(fault.split(' ').map(str::to_owned));
    pod.call("ADD").under(&words)
}

#[test]
fn a_second_add_that_fails_gives_back_what_it_took() {
    let host = Host::new();
    let [old, new] = both(&host);
    old.call("ADD").ok();
    is_masqueraded(&host, "old");
    let before = [rules(&host), old.record(), new.record()];
    host.read_only("/run/cni/localnet");
    new.call("ADD").error().expect(100, &["127.0.0.1"]);
    assert_eq!([rules(&host), old.record(), new.record()], before);
}

#[test]
fn attachments_end_in_any_order() {
    let names = ["a", "b", "c"];
    for ([first, second], last) in [([0, 1], 2), ([1, 2], 0), ([2, 0], 1), ([2, 1], 0)] {
        let host = Host::new();
        let pods = [0, 1, 2].map(|it| Pod::new(&host, names[it], [8080, 8081, 8082][it]).added());
        for place in [first, second] {
            pods[place].end();
        }
        is_masqueraded(&host, names[last]);
        pods[last].call("CHECK").ok();
        pods[last].end();
        assert!(!rules(&host).contains("cni:"), "{}", rules(&host));
    }
}

#[test]
fn an_attachment_without_record_gets_nothing_back() {
    let host = Host::new();
    let [old, new] = both(&host);
    old.call("DEL").ok();
    new.call("DEL").ok();
    assert!(!rules(&host).contains("cni:"), "{}", rules(&host));
}

#[test]
fn reloads_in_any_order_keep_both_pods() {
    for order in [[0, 1], [1, 0]] {
        for ends in [0, 1] {
            let host = Host::new();
            let _outside = host.outside_of_both_families();
            let pods = both(&host);
            let before = rules(&host);
            let reload = || order.map(|it| pods[it].call("RELOAD").ok());
            reload();
            assert_eq!(rules(&host), before);
            flush(&host);
            reload();
            is_masqueraded(&host, "new");
            let after = rules(&host);
            reload();
            assert_eq!(rules(&host), after);
            pods[ends].end();
            pods[1 - ends].serves_itself_and_localhost();
        }
    }
}

/// The record of the new pod lists no displaced attachment, as if the old pod's rules were missing
/// during its ADD.
#[test]
fn reload_takes_what_its_holder_would_not_give_back() {
    let host = Host::new();
    let [old, new] = both(&host);
    let mut record: Value = serde_json::from_str(&new.record()).unwrap();
    let displaced = record.as_object_mut().unwrap().remove("displaced");
    assert_eq!(displaced, Some(json!(["cni:pods/old/eth0"])));
    fs::write("/run/cni/portmap/cni:pods:new:eth0", record.to_string()).unwrap();
    for _ in 0..2 {
        old.call("RELOAD").ok();
        new.call("RELOAD").ok();
        is_masqueraded(&host, "old");
    }
    old.call("DEL").ok();
    is_masqueraded(&host, "new");
}

#[test]
fn the_agent_reloads_neither_pod_while_both_have_the_address() {
    let host = Host::new();
    let [old, new] = ["old", "new"].map(|name| host.sandbox(name));
    let tool: Tool<'_> = host.tool();
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    tool.configure(
        "pods",
        &[host.ptp().with_one_address().config().clone(), portmap],
    );
    tool.add("pods", &old, &["8080:80"]);
    let agent = agent(&host, &sections());
    tool.add("pods", &new, &["9090:80"]);
    let of_new = owners(&host);
    assert_eq!(of_new.len(), 3);
    pass(2 * PERIOD);
    assert_eq!(number("repair_reloads_total"), Some(1), "{}", agent.log());
    flush(&host);
    let is_whole = || {
        let ruleset = host.run("nft", &["list", "ruleset"]);
        ruleset.contains("masquerade-localhost4") && owners(&host) == of_new
    };
    assert!(eventually(is_whole), "{}", agent.log());
    pass(2 * PERIOD);
    let reloads = number("repair_reloads_total");
    pass(2 * PERIOD);
    assert_eq!(number("repair_reloads_total"), reloads, "{}", agent.log());
}
