//! Root in a sandbox may change everything there. A removal deletes what was created for the
//! sandbox, and nothing of others.

use serde_json::Value;
use tests::traffic::tcp_by_port;
use tests::{Chain, Host, Place as _, Removal, Sandbox};

/// Changes by the sandbox, as lines of ip(8).
const MISCHIEF: [(&str, &[&str]); 8] = [
    (
        "renames its link",
        &["link set eth0 down", "link set eth0 name eth9"],
    ),
    ("deletes its link", &["link delete eth0"]),
    (
        "puts another pair in its place",
        &[
            "link delete eth0",
            "link add eth0 type veth peer name other",
        ],
    ),
    (
        "puts another pair beside it",
        &[
            // Until Linux 6.2 a link keeps its name while it is up.
            "link set eth0 down",
            "link set eth0 name eth9",
            "link set eth9 up",
            "link add eth0 type veth peer name other",
        ],
    ),
    (
        "puts a bridge in its place",
        &["link delete eth0", "link add eth0 type bridge"],
    ),
    (
        "calls its link another's",
        &[
            "link set eth0 alias cni:pods/b/eth0",
            "link property add dev eth0 altname vethb",
        ],
    ),
    (
        "takes addresses of others",
        &[
            "address flush dev eth0",
            "address add 10.1.0.3/24 dev eth0",
            "address add 10.1.0.1/24 dev eth0",
            "link set eth0 address 02:00:00:00:00:01",
        ],
    ),
    (
        "moves its link into a namespace of its own",
        &["link set eth0 netns nested"],
    ),
];

/// Pod b with port 9080, which must not be affected.
struct Neighbour<'h> {
    chain: Chain<'h>,
    sandbox: Sandbox,
    result: Value,
}

impl<'h> Neighbour<'h> {
    fn new(host: &'h Host, plugins: &[&str]) -> Self {
        let chain = Chain::new(host, plugins).with_ports([9080, 9053]);
        let sandbox = host.sandbox("b");
        let result = chain.add(&sandbox).unwrap();
        Self {
            chain,
            sandbox,
            result,
        }
    }

    fn expect_well(&self, host: &Host, what: &str) {
        let (b, chain) = (&self.sandbox, &self.chain);
        chain.check_first(chain.len(), (b, &self.result)).unwrap();
        let seen = tcp_by_port(host, "10.1.0.1:9080", (b, 80));
        assert!(seen.is_some(), "{what}: no answer on the port of b");
    }
}

#[test]
fn del_removes_everything_of_a_hostile_container_and_nothing_else() {
    removes_everything_and_nothing_else(&["bridge", "portmap", "bandwidth", "firewall"]);
}

#[test]
fn del_removes_everything_of_a_hostile_container_of_a_routed_pair_and_nothing_else() {
    removes_everything_and_nothing_else(&["ptp", "portmap", "bandwidth"]);
}

#[track_caller]
fn removes_everything_and_nothing_else(plugins: &[&str]) {
    let host = Host::new();
    let chain = Chain::new(&host, plugins);
    let b = Neighbour::new(&host, plugins);
    let _nested = host.sandbox("nested");
    let first = host.sandbox("first");
    let result = chain.add(&first).unwrap();
    chain.remove(Removal::Del, (&first, &result)).unwrap();
    let before = host.snapshot();
    for (what, lines) in MISCHIEF {
        for removal in [Removal::Del, Removal::DelForgotten] {
            let a = host.sandbox("a");
            let result = chain.add(&a).unwrap();
            for line in lines {
                a.ip(line);
            }
            chain.remove(removal, (&a, &result)).unwrap();
            let left = host.snapshot().differences(&before);
            assert!(left.is_empty(), "{what}, {removal:?}: {left:#?}");
            b.expect_well(&host, what);
            a.remove();
        }
    }
}
