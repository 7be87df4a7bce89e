//! Capabilities: those that the plugins need suffice.

use serde_json::Value;
use tests::dhcp::{Daemon, Server};
use tests::{Chain, Host, Place as _, Removal, Sandbox};

const NET: &str = "net_admin";
const SYS: &str = "sys_admin";

/// The last plugin of a chain, with the capabilities that its ADD (and RELOAD), CHECK and DEL need.
struct Subject {
    chain: &'static [&'static str],
    add: &'static [&'static str],
    check: &'static [&'static str],
    del: &'static [&'static str],
}

const SUBJECTS: [Subject; 13] = [
    Subject {
        chain: &["loopback"],
        add: &[NET, SYS],
        check: &[SYS],
        del: &[NET, SYS],
    },
    Subject {
        chain: &["bridge"],
        add: &[NET, SYS],
        check: &[NET, SYS],
        del: &[NET],
    },
    Subject {
        chain: &["ptp"],
        add: &[NET, SYS],
        check: &[NET, SYS],
        del: &[NET],
    },
    Subject {
        chain: &["macvlan"],
        add: &[NET, SYS],
        check: &[NET, SYS],
        del: &[NET, SYS],
    },
    Subject {
        chain: &["tap"],
        add: &[NET, SYS],
        check: &[SYS],
        del: &[NET, SYS],
    },
    Subject {
        chain: &["host-device"],
        add: &[NET, SYS],
        check: &[SYS],
        del: &[NET, SYS],
    },
    Subject {
        chain: &["bridge", "portmap"],
        add: &[NET],
        check: &[NET],
        del: &[NET],
    },
    Subject {
        chain: &["bridge", "bandwidth"],
        add: &[NET, SYS],
        check: &[NET, SYS],
        del: &[NET],
    },
    Subject {
        chain: &["bridge", "firewall"],
        add: &[NET],
        check: &[NET],
        del: &[NET],
    },
    Subject {
        chain: &["bridge", "tuning"],
        add: &[NET, SYS],
        check: &[SYS],
        del: &[NET, SYS],
    },
    Subject {
        chain: &["bridge", "sbr"],
        add: &[NET, SYS],
        check: &[SYS],
        del: &[NET, SYS],
    },
    Subject {
        chain: &["static"],
        add: &[],
        check: &[],
        del: &[],
    },
    Subject {
        chain: &["host-local"],
        add: &[],
        check: &[],
        del: &[],
    },
];

/// The plugins with the verb RELOAD.
const RELOADED: [&str; 5] = ["bridge", "ptp", "portmap", "bandwidth", "firewall"];

/// Returns a chain, a sandbox, and the result of the plugins before the last one.
fn before_last<'h>(host: &'h Host, subject: &Subject) -> (Chain<'h>, Sandbox, Value) {
    let chain = Chain::new(host, subject.chain);
    let a = host.sandbox("a");
    let before = chain.add_first(chain.len() - 1, &a).unwrap();
    (chain, a, before)
}

#[test]
fn every_verb_works_with_the_capabilities_of_the_readme() {
    for subject in SUBJECTS {
        let host = Host::new();
        let (chain, a, before) = before_last(&host, &subject);
        let last = chain.len() - 1;
        for removal in Removal::ALL {
            let run = |verb: &str, capabilities, result: &Value| {
                let call = chain.call(last, verb, (&a, result));
                call.with_capabilities(capabilities).ok()
            };
            let result = run("ADD", subject.add, &before);
            run("CHECK", subject.check, &result);
            if RELOADED.contains(&subject.chain[last]) {
                run("RELOAD", subject.add, &result);
            }
            let remove = chain.removal(last, removal, (&a, &result));
            remove.with_capabilities(subject.del).ok();
            if removal.keeps_address(&chain) {
                chain.gc(&[]).unwrap();
            }
        }
    }
}

/// What ADD changed stays on record, so a removal with all capabilities reverts it.
#[test]
fn a_removal_that_cannot_enter_the_sandbox_fails_and_keeps_the_record() {
    for (plugin, removal) in [
        ("sbr", Removal::Del),
        ("sbr", Removal::Gc),
        ("tuning", Removal::Del),
    ] {
        let host = Host::new();
        let chain = Chain::new(&host, &["bridge", plugin]);
        let a = host.sandbox("a");
        let result = chain.add(&a).unwrap();
        let directory = std::path::Path::new("/run/cni").join(plugin);
        let records = || directory.read_dir().unwrap().count();
        let remove = chain.removal(1, removal, (&a, &result));
        let outcome = remove.clone().with_capabilities(&[NET]).run();
        assert!(!outcome.status.success(), "{plugin}: {outcome:?}");
        assert!(outcome.stdout.contains("CAP_SYS_ADMIN"), "{outcome:?}");
        assert_eq!(records(), 1, "{plugin}");
        remove.ok();
        assert_eq!(records(), 0, "{plugin}");
        assert_eq!(a.ip("rule").lines().count(), 3);
    }
}

/// The plugin only talks to its daemon.
#[test]
fn dhcp_needs_no_capability_and_its_daemon_three() {
    let host = Host::new();
    let network = tests::dhcp::network(&host).with("type", "dhcp");
    let _server = Server::leasing(&[[10, 6, 0, 50]], 60);
    let run = Daemon::run(&host).with_capabilities(&[NET, SYS, "net_raw"]);
    let daemon = Daemon::spawn(&host, &run);
    daemon.says("listening");
    let a = host.sandbox("a");
    host.ip("link add port type veth peer name eth0 netns a");
    host.ip("link set port master cni0 up");
    let result = network.on("ADD", &a).powerless().ok();
    let check = network.check(&a, &result).powerless();
    check.ok();
    network.on("DEL", &a).powerless().ok();
    daemon.says("from the interface");
}

#[test]
fn an_add_that_lacks_a_capability_names_it_and_leaves_nothing() {
    for subject in SUBJECTS {
        let host = Host::new();
        let (chain, a, before) = before_last(&host, &subject);
        let at_first = host.snapshot();
        for lacking in subject.add {
            let others: Vec<_> = subject
                .add
                .iter()
                .filter(|it| *it != lacking)
                .copied()
                .collect();
            let call = chain.call(chain.len() - 1, "ADD", (&a, &before));
            let outcome = call.with_capabilities(&others).run();
            let name = format!("CAP_{}", lacking.to_uppercase());
            assert!(
                !outcome.status.success(),
                "{:?} without {name}",
                subject.chain
            );
            assert!(
                outcome.stdout.contains(&name),
                "{name} is not in {outcome:?}"
            );
            host.snapshot().assert_same_as(&at_first);
        }
    }
}
