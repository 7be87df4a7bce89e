//! Common behaviour of all plugins: their inputs, and the code of each rejection.

use serde_json::{Value, json};
use tests::{Host, Invocation, Network, PLUGINS, Place as _};

const VERSIONS: [&str; 7] = [
    "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0",
];

/// Runs a test for a network of each plugin.
fn each_plugin(test: impl Fn(&Host, &Network<'_>, &str)) {
    let host = Host::new();
    let networks = [
        host.bridge(),
        host.host_local(),
        host.fixed(),
        host.loopback(),
    ];
    let before = host.snapshot();
    for network in networks {
        test(&host, &network, network.config()["type"].as_str().unwrap());
        host.snapshot().assert_same_as(&before);
    }
}

/// Returns a valid ADD for a sandbox that does not exist.
fn add(network: &Network<'_>) -> Invocation {
    network.call_for("ADD", "c1")
}

#[test]
fn run_by_hand_prints_name_and_versions() {
    each_plugin(|host, _, name| {
        for by_hand in [
            host.plugin(name).without("CNI_PATH"),
            host.plugin(name).verb(""),
        ] {
            let outcome = by_hand.run();
            assert!(
                outcome.status.success() && outcome.stdout.is_empty(),
                "{outcome:?}"
            );
            let lines: Vec<_> = outcome.stderr.lines().collect();
            let version = lines[0].strip_prefix(&format!("CNI {name} plugin v"));
            let version = version.unwrap_or_else(|| panic!("{lines:?}"));
            assert!(
                version.starts_with(|c: char| c.is_ascii_digit()),
                "{lines:?}"
            );
            if std::env::var_os("PLUGINS_UNDER_TEST").is_none() {
                assert_eq!(version, env!("CARGO_PKG_VERSION"), "the workspace's");
            }
            let versions = lines[1].strip_prefix("CNI protocol versions supported: ");
            let versions: Vec<_> = versions.unwrap().split(", ").collect();
            assert_eq!(versions, VERSIONS);
            let suite = format!("plugins of this suite: {};", PLUGINS.join(", "));
            assert!(lines[2].starts_with(&suite), "{lines:?}");
        }
    });
}

#[test]
fn help_lists_the_keys_of_the_page() {
    let test = std::env::current_exe().unwrap();
    for (name, key) in [
        ("bridge", "vlanTrunk[].id, vlanTrunk[].minID"),
        ("host-local", "ranges[][].subnet (CIDR, required)"),
        ("bandwidth", "ingressRate, egressRate (bit/s, 8"),
        ("cni-agent", "ingress.unitMbit, egress.unitMbit (required)"),
    ] {
        let path = test.ancestors().nth(2).unwrap().join(name);
        let help = tests::run(path.to_str().unwrap(), &["--help"]);
        assert!(help.contains(key) && !help.contains(['`', '|']), "{help}");
    }
}

#[test]
fn version_by_hand_passes_the_checks_of_installers() {
    let host = Host::new();
    for name in PLUGINS.iter().copied() {
        let printed = host.plugin(name).without("CNI_PATH").run().stderr;
        // Nomad uses the first word that is a version, nerdctl the rest of the first line.
        let version = printed.lines().next().unwrap().rsplit(' ').next().unwrap();
        let numbers = version.strip_prefix('v').unwrap().split('.');
        let numbers: Vec<u32> = numbers.map(|it| it.parse().unwrap()).collect();
        assert_eq!(numbers.len(), 3, "{version}");
        assert!(numbers > vec![1, 7, 1], "{version}");
    }
}

#[test]
fn version_answers_whatever_else_is_there() {
    each_plugin(|host, _, name| {
        let plain = host.plugin(name).verb("VERSION");
        let podman = plain.clone().netns("dummy").ifname("dummy").container("");
        for asked in [
            plain.clone(),
            plain.clone().without("CNI_PATH"),
            plain.clone().stdin("{"),
            podman.config(&json!({"cniVersion": "1.0.0"})),
        ] {
            let answer = asked.ok();
            assert_eq!(answer["supportedVersions"], json!(VERSIONS));
            assert!(answer["cniVersion"].is_string(), "{answer}");
        }
    });
}

#[test]
fn code_1_for_an_unreleased_version() {
    each_plugin(|_, network, _| {
        for version in ["0.0.1", "1.0", "1.2.0", "v1.0.0", "2.0.0", "x"] {
            let refusal = add(&network.clone().with("cniVersion", version)).error();
            refusal.expect(1, &[version, "1.1.0"]);
        }
    });
}

#[test]
fn code_1_for_a_verb_that_the_version_has_not() {
    each_plugin(|_, network, _| {
        for (verb, version) in [
            ("CHECK", "0.3.1"),
            ("CHECK", "0.1.0"),
            ("GC", "1.0.0"),
            ("STATUS", "1.0.0"),
            ("STATUS", "0.4.0"),
        ] {
            let network = network.clone().with("cniVersion", version);
            let asked = network.call(verb).container("c1").ifname("eth0");
            let refusal = asked.netns("/run/netns/never-was").error();
            refusal.expect(1, &[verb, version]);
        }
    });
}

#[test]
fn code_4_names_all_missing_variables_at_once() {
    each_plugin(|_, network, _| {
        let newest = network.clone().with("cniVersion", "1.1.0");
        let all = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"];
        newest.call("ADD").error().expect(4, &all);
        newest.call("CHECK").error().expect(4, &all);
        let refusal = newest.call("DEL").error();
        refusal.expect(4, &["CNI_CONTAINERID", "CNI_IFNAME"]);
        assert!(!refusal.mentions("CNI_NETNS"), "{refusal:?}");
        let refusal = add(network).ifname("").error();
        refusal.expect(4, &["CNI_IFNAME"]);
        assert!(!refusal.mentions("CNI_CONTAINERID"), "{refusal:?}");
        let gc = newest.gc(&[]).without("CNI_PATH");
        gc.error().expect(4, &["CNI_PATH"]);
    });
}

#[test]
fn code_4_for_unsafe_names() {
    each_plugin(|_, network, _| {
        for id in ["-a", "a/b", "../a", "a b", "_a", "ä"] {
            add(network)
                .container(id)
                .error()
                .expect(4, &["CNI_CONTAINERID"]);
        }
        for name in [".", "..", "a/b", "a:b", "a b", "sixteen-letters.", "a\tb"] {
            add(network).ifname(name).error().expect(4, &["CNI_IFNAME"]);
        }
        // Invalid values are reported before missing ones.
        let both = network.call("ADD").ifname("a/b");
        both.error().expect(4, &["CNI_IFNAME", "a/b"]);
    });
}

#[test]
fn code_4_for_an_unknown_verb() {
    each_plugin(|_, network, _| {
        for verb in ["add", "REMOVE", "ADD ", "VERSIONS"] {
            add(network)
                .verb(verb)
                .error()
                .expect(4, &["CNI_COMMAND", verb]);
        }
    });
}

#[test]
fn plugins_with_arguments_refuse_malformed_ones_with_code_4() {
    let host = Host::new();
    let a = host.sandbox("a");
    for network in [host.bridge(), host.host_local()] {
        for args in MALFORMED_ARGS {
            let add = network.on("ADD", &a).args(args);
            add.error().expect(4, &["CNI_ARGS"]);
        }
    }
}

#[test]
fn plugins_without_arguments_ignore_cni_args() {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = host.bridge().add(&a);
    for plugin in ["loopback", "portmap", "bandwidth"] {
        let config =
            json!({"cniVersion": "1.0.0", "name": "pods", "type": plugin, "prevResult": result});
        for args in MALFORMED_ARGS {
            for verb in ["ADD", "CHECK", "DEL"] {
                let call = host.plugin(plugin).verb(verb).config(&config).sandbox(&a);
                call.args(args).ok();
            }
        }
    }
}

#[test]
fn the_environment_is_checked_before_the_configuration() {
    each_plugin(|_, network, _| {
        network.call("ADD").stdin("{").error().expect(4, &[]);
    });
}

#[test]
fn code_5_for_a_request_of_ten_megabytes() {
    each_plugin(|_, network, _| {
        let padding = " ".repeat(10 << 20);
        let request = format!("{}{padding}", network.config());
        add(network).stdin(request).error().expect(5, &["stdin"]);
        let value = "x".repeat(10 << 20);
        let config = network.clone().with("comment", value);
        add(&config).error().expect(5, &["stdin"]);
    });
}

#[test]
fn code_6_for_what_is_no_configuration() {
    each_plugin(|_, network, _| {
        let whole = network.config().to_string();
        let truncated = &whole[..whole.len() / 2];
        let mut requests: Vec<String> = ["", " ", "[]", "null", "7", "{\"name\": \"a\u{0}\"}"]
            .map(String::from)
            .into();
        requests.extend([
            truncated.to_owned(),
            format!("{whole}x"),
            format!("{whole}{whole}"),
        ]);
        for request in requests {
            add(network).stdin(request.clone()).error().expect(6, &[]);
        }
        add(network)
            .stdin(&b"{\"name\": \"\xff\"}"[..])
            .error()
            .expect(6, &[]);
    });
}

#[test]
fn code_6_for_a_name_or_version_of_the_wrong_type() {
    each_plugin(|_, network, _| {
        for key in ["name", "cniVersion"] {
            for value in [json!(1), json!(true), json!(["a"]), json!({})] {
                let refusal = add(&network.clone().with(key, value)).error();
                refusal.expect(6, &[key]);
            }
        }
    });
}

#[test]
fn code_7_for_a_name_that_is_missing_or_invalid() {
    each_plugin(|_, network, _| {
        add(&network.clone().without("name"))
            .error()
            .expect(7, &["name"]);
        for name in ["", "..", "../../etc", "a b", "-a", "a/b"] {
            let refusal = add(&network.clone().with("name", name)).error();
            refusal.expect(7, &["name", name]);
        }
    });
}

#[test]
fn code_8_for_the_plugins_own_namespace() {
    each_plugin(|_, network, _| {
        let refusal = add(network).netns("/proc/self/ns/net").error();
        refusal.expect(8, &["/proc/self/ns/net"]);
    });
}

#[test]
fn an_error_is_reported_in_the_version_of_the_request() {
    each_plugin(|_, network, _| {
        for version in VERSIONS {
            let network = network.clone().with("cniVersion", version);
            let bad = network.with("prevResult", "x").with("ipam.ranges", "x");
            let refusal = add(&bad).error();
            assert_eq!(refusal.cni_version, version, "{refusal:?}");
        }
    });
}

#[test]
fn a_missing_version_is_the_first_one() {
    let host = Host::new();
    let a = host.sandbox("a");
    for network in [
        host.host_local().without("cniVersion"),
        host.host_local().with("cniVersion", ""),
    ] {
        let result = network.add(&a);
        assert_eq!(result["cniVersion"], "0.1.0");
        assert!(result["ip4"].is_object(), "{result}");
        network.del(&a);
    }
}

#[test]
fn keys_match_in_any_case() {
    let host = Host::new();
    let a = host.sandbox("a");
    let config = json!({
        "CNIVERSION": "1.0.0", "Name": "pods", "TYPE": "bridge",
        "BRIDGE": "cni7", "IsGateway": true, "MTU": 1400, "HairPinMode": true,
        "IPAM": {
            "Type": "host-local", "DATADIR": host.lease_dir(),
            "Ranges": [[{"SUBNET": "10.1.0.0/24", "rangestart": "10.1.0.9"}]],
            "ROUTES": [{"DST": "0.0.0.0/0"}],
        },
        "RUNTIMECONFIG": {"Mac": "02:00:00:00:00:09"},
    });
    let result = host
        .plugin("bridge")
        .verb("ADD")
        .sandbox(&a)
        .config(&config)
        .ok();
    assert_eq!(result["interfaces"][0]["name"], "cni7");
    assert_eq!(a.addresses("eth0"), ["10.1.0.9/24"]);
    assert_eq!(a.default_gateways(), ["10.1.0.1"]);
    assert_eq!(a.mac("eth0"), "02:00:00:00:00:09");
    assert_eq!(a.link("eth0")["mtu"], 1400);
    assert_eq!(host.addresses("cni7"), ["10.1.0.1/24"]);
}

#[test]
fn unknown_keys_are_ignored_and_reported() {
    let host = Host::new();
    for (name, network, key) in [
        ("a", host.bridge(), "plugh"),
        // Its other keys belong to the plugin that delegates to it.
        ("b", host.host_local(), "ipam.plugh"),
        ("d", host.fixed(), "ipam.plugh"),
        ("c", host.loopback(), "plugh"),
    ] {
        let sandbox = host.sandbox(name);
        let network = network
            .with(key, 1)
            .with("runtimeConfig.cgroupPath", "/pods");
        let outcome = network.on("ADD", &sandbox).run();
        outcome.ok();
        assert!(outcome.stderr.contains(key), "{outcome:?}");
        assert!(!outcome.stderr.contains("cgroupPath"), "{outcome:?}");
    }
}

#[test]
fn a_prev_result_that_makes_no_sense_stops_add_and_not_del() {
    let host = Host::new();
    let a = host.sandbox("a");
    for network in [
        host.bridge(),
        host.host_local(),
        host.fixed(),
        host.loopback(),
    ] {
        let nonsense = network
            .clone()
            .with("prevResult", json!({"ips": [{"address": "10.1.0.2/33"}]}));
        nonsense.on("ADD", &a).error().expect(6, &["prevResult"]);
        network.add(&a);
        nonsense.del(&a);
        assert!(host.leases("pods").is_empty() && !a.has_link("eth0"));
    }
}

#[test]
fn del_and_gc_do_not_look_at_the_arguments() {
    let host = Host::new();
    let a = host.sandbox("a");
    for network in [
        host.bridge(),
        host.host_local(),
        host.fixed(),
        host.loopback(),
    ] {
        assert_eq!(network.on("DEL", &a).args("A;=").ok(), Value::Null);
        assert_eq!(network.gc(&[]).args("A;=").ok(), Value::Null);
    }
}

const MALFORMED_ARGS: [&str; 4] = ["A", "IgnoreUnknown=1;A", "IgnoreUnknown=1;A=b=c", ";"];
