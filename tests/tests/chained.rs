//! portmap, bandwidth and firewall: values that pass through the chain, and rejected ones.

use serde_json::{Value, json};
use tests::traffic::tcp_by_port;
use tests::{Host, Invocation, Place as _, Sandbox};

fn result() -> Value {
    json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "sandbox": "/run/netns/a", "vendor": 1}],
        "ips": [{"address": "10.1.0.2/24", "interface": 0}],
        "dns": {"nameservers": ["10.1.0.1"]},
        "vendor.example/id": {"kept": true},
    })
}

fn config(plugin: &str) -> Value {
    json!({"cniVersion": "1.0.0", "name": "pods", "type": plugin, "prevResult": result()})
}

fn run(host: &Host, verb: &str, sandbox: &Sandbox, config: &Value) -> Invocation {
    let name = config["type"].as_str().unwrap();
    host.plugin(name).verb(verb).config(config).sandbox(sandbox)
}

/// Returns configurations without ports or limits, in the forms of different runtimes.
fn idle() -> [Value; 4] {
    let mut mapped = config("portmap");
    mapped["runtimeConfig"] = json!({"portMappings": []});
    mapped["snat"] = json!(true);
    let mut zeros = config("bandwidth");
    zeros["runtimeConfig"] = json!({"bandwidth": {
        "ingressRate": 0, "ingressBurst": 34_359_738_359_u64, "egressRate": 0, "egressBurst": 0,
    }});
    [config("portmap"), mapped, config("bandwidth"), zeros]
}

#[test]
fn where_nothing_is_asked_for_the_result_passes_through_unchanged() {
    let host = Host::new();
    let a = host.sandbox("a");
    for config in idle() {
        assert_eq!(run(&host, "ADD", &a, &config).ok(), result(), "{config}");
        assert_eq!(run(&host, "CHECK", &a, &config).ok(), Value::Null);
        assert_eq!(run(&host, "DEL", &a, &config).ok(), Value::Null);
    }
    assert_eq!(
        host.run("nft", &["list", "ruleset"]),
        "",
        "nothing is touched"
    );
}

/// They are keys of 1.1.0, but AWS passes data in them below that version.
#[test]
fn newer_keys_of_interfaces_pass_through_in_older_versions() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.bridge().add(&a);
    for plugin in ["portmap", "bandwidth", "tuning", "firewall"] {
        for version in ["0.4.0", "1.0.0", "1.1.0"] {
            let mut config = config(plugin);
            config["cniVersion"] = json!(version);
            let result = &mut config["prevResult"];
            result["cniVersion"] = json!(version);
            let interface = json!({"name": "eth0", "sandbox": a.path(), "mtu": 9001,
                "pciID": "0000:00:1f.6", "socketPath": "/run/s"});
            result["interfaces"][0] = interface.clone();
            let printed = run(&host, "ADD", &a, &config).ok();
            assert_eq!(printed["interfaces"][0], interface, "{plugin} {version}");
        }
    }
}

#[test]
fn none_can_be_the_first_of_a_chain() {
    let host = Host::new();
    let a = host.sandbox("a");
    for plugin in ["portmap", "bandwidth", "firewall"] {
        let mut config = config(plugin);
        config.as_object_mut().unwrap().remove("prevResult");
        run(&host, "ADD", &a, &config)
            .error()
            .expect(7, &["prevResult", "chain"]);
    }
}

#[test]
fn bandwidth_needs_a_version_that_lists_interfaces() {
    let host = Host::new();
    let a = host.sandbox("a");
    let mut config = config("bandwidth");
    config["cniVersion"] = json!("0.2.0");
    run(&host, "ADD", &a, &config).error().expect(1, &["0.2.0"]);
}

#[test]
fn portmap_forwards_behind_a_plugin_of_any_version() {
    let host = Host::new();
    let a = host.sandbox("a");
    for version in ["", "0.1.0", "0.2.0", "0.3.0"] {
        let ports = host.ports().with_bridge("cniVersion", version);
        let portmap = ports.with("cniVersion", version).add(&a, &["8080:80"]);
        assert!(tcp_by_port(&host, "127.0.0.1:8080", (&a, 80)).is_some());
        portmap.del(&a);
        host.bridge().del(&a);
    }
}

#[test]
fn status_and_gc_have_nothing_to_do() {
    let host = Host::new();
    let a = host.sandbox("a");
    for plugin in ["portmap", "bandwidth", "firewall"] {
        let mut config = config(plugin);
        config["cniVersion"] = json!("1.1.0");
        config["cni.dev/valid-attachments"] = json!([]);
        for verb in ["STATUS", "GC"] {
            assert_eq!(run(&host, verb, &a, &config).ok(), Value::Null);
        }
    }
}

#[test]
fn every_version_is_spoken_and_by_bandwidth_those_that_list_interfaces() {
    let host = Host::new();
    let all = [
        "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0",
    ];
    for (plugin, versions) in [
        ("portmap", &all[..]),
        ("firewall", &all[..]),
        ("bandwidth", &all[2..]),
    ] {
        let answer = host.plugin(plugin).verb("VERSION").ok();
        assert_eq!(answer["supportedVersions"], json!(versions));
        let by_hand = host.plugin(plugin).run().stderr;
        let mut lines = by_hand.lines();
        assert!(
            lines
                .next()
                .unwrap()
                .starts_with(&format!("CNI {plugin} plugin v"))
        );
        let supported = format!("CNI protocol versions supported: {}", versions.join(", "));
        assert_eq!(lines.next(), Some(supported.as_str()));
    }
}
