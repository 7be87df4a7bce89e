//! The devices that `cni-agent` offers to a kubelet, which the test plays.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use kubelet::device_plugin::PreStartContainerRequest;
use serde_json::{Value, json};
use tests::devices::{
    EGRESS, INGRESS, TUN, node, node_with_driver, plugins, refused, root, three, tun,
};
use tests::repair::health;
use tests::{Agent, Kubelet, Place as _, eventually};

#[test]
fn the_kubelet_lists_all_devices_of_the_node() {
    let host = node();
    let kubelet = Kubelet::start(&root(&host));
    let agent = Agent::start(&host, &three(&host));
    kubelet.wait_for(INGRESS, 1_000);
    kubelet.wait_for(EGRESS, 20);
    kubelet.wait_for(TUN, 3);
    let ids: Vec<_> = kubelet.devices(TUN).into_keys().collect();
    assert_eq!(ids, ["tun-00001", "tun-00002", "tun-00003"]);
    let devices = kubelet.listed(INGRESS);
    assert!(devices.iter().all(|it| it.topology.is_none()));
    for request in kubelet.registrations() {
        assert_eq!(request.version, "v1beta1");
        assert!(request.options.is_some_and(|it| !it.pre_start_required));
        let socket = plugins(&host).join(&request.endpoint);
        let mode = fs::metadata(socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    assert_eq!(kubelet.registrations().len(), 3);
    assert!(
        kubelet
            .options()
            .iter()
            .all(|it| it.get_preferred_allocation_available)
    );
    drop(agent);
}

#[test]
fn a_container_gets_devices_and_the_file_of_tun() {
    let host = node();
    let kubelet = Kubelet::start(&root(&host));
    let _agent = Agent::start(&host, &three(&host));
    kubelet.wait_for(INGRESS, 1_000);
    kubelet.wait_for(EGRESS, 20);
    kubelet.wait_for(TUN, 3);
    for resource in [INGRESS, EGRESS] {
        let answer = kubelet.allocate("pod", resource, 2).unwrap();
        assert!(answer.devices.is_empty() && answer.envs.is_empty());
        assert!(answer.annotations.is_empty());
    }
    let answer = kubelet.allocate("pod", TUN, 1).unwrap();
    let files = answer.devices.iter();
    let files: Vec<_> = files
        .map(|it| [&it.host_path, &it.container_path, &it.permissions].map(String::as_str))
        .collect();
    assert_eq!(files, [["/dev/net/tun", "/dev/net/tun", "rw"]]);
    kubelet.allocate("other", EGRESS, 1).unwrap();
    let allocated = kubelet.allocated();
    let of = |pod: &str| &allocated[&(pod.to_owned(), EGRESS.to_owned())];
    assert_eq!(of("pod"), &["egress-00001", "egress-00002"]);
    assert_eq!(of("other"), &["egress-00003"]);
    let mut plugin = kubelet.plugin(TUN);
    plugin.run(async |it| {
        let devices = vec!["tun-00001".to_owned()];
        it.pre_start_container(PreStartContainerRequest { devices })
            .await
            .unwrap();
    });
}

#[test]
fn impossible_allocations_are_refused() {
    let host = node();
    let kubelet = Kubelet::start(&root(&host));
    let _agent = Agent::start(&host, &three(&host));
    kubelet.wait_for(EGRESS, 20);
    kubelet.wait_for(INGRESS, 1_000);
    for id in [
        "egress-00021",
        "egress-00000",
        "egress-1",
        "ingress-00001",
        "",
        "\u{0}",
    ] {
        let refused = kubelet
            .allocate_these(EGRESS, &[id.to_owned()])
            .unwrap_err();
        let text = format!("{EGRESS} has no device {id:?}");
        assert_eq!(refused.message(), text);
    }
    let refused = kubelet.allocate("pod", EGRESS, 21).unwrap_err();
    assert!(refused.message().contains("21 is not from 0"), "{refused}");
    assert!(kubelet.allocated().is_empty());
}

#[test]
fn devices_have_the_numa_node_of_the_uplink() {
    let host = node_with_driver("1000", "1", "1");
    let kubelet = Kubelet::start(&root(&host));
    let _agent = Agent::start(&host, &three(&host));
    kubelet.wait_for(INGRESS, 100);
    kubelet.wait_for(TUN, 3);
    for device in kubelet.listed(INGRESS) {
        let nodes: Vec<_> = device
            .topology
            .unwrap()
            .nodes
            .iter()
            .map(|it| it.id)
            .collect();
        assert_eq!(nodes, [1]);
    }
    assert!(kubelet.listed(TUN).iter().all(|it| it.topology.is_none()));
}

#[test]
fn an_unknown_speed_is_an_error_that_names_the_key() {
    let host = node_with_driver("-1", "1", "-1");
    let outcome = refused(&host, &three(&host));
    let text = "the driver of uplink does not know its speed: set capacityMbit";
    assert!(outcome.stderr.contains(text), "{outcome:#?}");
}

#[test]
fn devices_follow_the_speed_of_the_uplink() {
    let host = node_with_driver("1000", "1", "-1");
    let kubelet = Kubelet::start(&root(&host));
    let agent = Agent::start(&host, &three(&host));
    kubelet.wait_for(INGRESS, 100);
    let change = |speed: &str| {
        fs::write("/sys/class/net/uplink/speed", speed).unwrap();
        host.ip("link set uplink txqueuelen 77");
        host.ip("link set uplink txqueuelen 78");
    };
    change("2500");
    kubelet.wait_for(INGRESS, 250);
    change("-1");
    agent.says("does not know its speed");
    change("400000");
    agent.says("set unitMbit to 41 or more");
    assert_eq!(kubelet.devices(INGRESS).len(), 250);
    change("1000");
    kubelet.wait_for(INGRESS, 100);
    agent.says("devices: uplink: works again");
}

#[test]
fn the_agent_waits_for_a_carrier_and_for_a_default_route() {
    let host = node();
    host.ip("route delete default");
    host.ip("link set uplink down");
    let kubelet = Kubelet::start(&root(&host));
    let agent = Agent::start(&host, &three(&host));
    agent.says("there is no default route");
    let (before, batch) = (agent.peak(), host.dir().join("batch"));
    let lines = "link set uplink up\nlink set uplink down\n";
    fs::write(&batch, lines.repeat(3_000)).unwrap();
    host.run("ip", &["-batch", batch.to_str().unwrap()]);
    let kept = agent.peak() - before;
    assert!(kept < 20 << 10, "the agent keeps {kept} KiB of events");
    host.ip("link add other type veth peer name peer");
    host.ip("link set uplink up");
    host.ip("route add default via 192.0.2.2");
    kubelet.wait_for(INGRESS, 1_000);
    drop(agent);
    host.ip("link set uplink down");
    let mut config = three(&host);
    config["devices"]["uplink"] = json!("uplink");
    let agent = Agent::start(&host, &config);
    agent.says("uplink has no carrier");
    host.ip("link set uplink up");
    kubelet.wait_for(INGRESS, 1_000);
}

#[test]
fn devices_are_unhealthy_while_the_uplink_has_no_carrier() {
    let host = node();
    let kubelet = Kubelet::start(&root(&host));
    let agent = Agent::start(&host, &three(&host));
    kubelet.wait_for(INGRESS, 1_000);
    kubelet.wait_for(TUN, 3);
    host.ip("link set uplink down");
    kubelet.wait_for(INGRESS, 0);
    kubelet.wait_for(EGRESS, 0);
    assert_eq!(
        kubelet.devices(INGRESS).len(),
        1_000,
        "no device disappears"
    );
    kubelet.wait_for(TUN, 3);
    let before = kubelet.lists();
    host.ip("link set uplink up");
    kubelet.wait_for(INGRESS, 1_000);
    kubelet.wait_for(EGRESS, 20);
    assert_eq!(kubelet.lists(), before + 2);
    agent.says("devices: uplink: uplink has no carrier, so pods get no bandwidth");
    agent.says("devices: uplink: works again");
}

#[test]
fn an_uplink_that_is_missing_or_dead_and_a_missing_file_are_reported() {
    let host = node();
    let kubelet = Kubelet::start(&root(&host));
    host.hide("/dev/net");
    let config = json!({"metrics": {}, "devices": {
        "domain": "example.org",
        "kubeletDir": root(&host),
        "uplink": "nolink",
        "egress": {"unitMbit": 100, "capacityMbit": 2000},
        "tun": 3,
    }});
    let agent = Agent::start(&host, &config);
    let texts = [
        "devices: uplink: there is no link nolink, so pods get no bandwidth",
        "devices: tun: /dev/net/tun is missing: run modprobe tun",
    ];
    for text in texts {
        agent.says(text);
    }
    assert!(texts.iter().all(|it| health().contains(it)), "{}", health());
    host.ip("link add nolink type veth peer name peer");
    agent.says("devices: uplink: nolink has no carrier, so pods get no bandwidth");
    fs::write("/dev/net/tun", "").unwrap();
    host.ip("link set nolink up");
    host.ip("link set peer up");
    kubelet.wait_for(EGRESS, 20);
    kubelet.wait_for(TUN, 3);
    assert!(eventually(|| health() == "ok\n"), "{}", agent.log());
}

#[test]
fn a_storm_of_link_events_gives_few_lists() {
    let host = node();
    let kubelet = Kubelet::start(&root(&host));
    let _agent = Agent::start(&host, &three(&host));
    kubelet.wait_for(INGRESS, 1_000);
    kubelet.wait_for(EGRESS, 20);
    let (start, before) = (Instant::now(), kubelet.lists());
    for _ in 0..100 {
        host.ip("link set uplink down");
        host.ip("link set uplink up");
    }
    let periods = start.elapsed().as_millis() / 200 + 2;
    kubelet.wait_for(INGRESS, 1_000);
    kubelet.wait_for(EGRESS, 20);
    let lists = kubelet.lists() - before;
    assert!(
        lists <= 2 * usize::try_from(periods).unwrap(),
        "{lists} in {periods} periods"
    );
}

#[test]
fn wrong_configurations_are_refused_by_key_and_value() {
    let host = node();
    let base = tun(&host);
    for (change, text) in wrong() {
        let mut config = base.clone();
        let keys = config["devices"].as_object_mut().unwrap();
        keys.extend(change.as_object().unwrap().clone());
        let outcome = refused(&host, &config);
        assert!(outcome.stderr.contains(text), "{text}: {}", outcome.stderr);
    }
}

/// Wrong keys, with what the error says.
fn wrong() -> Vec<(Value, &'static str)> {
    let long = format!("/{}", "k".repeat(90));
    vec![
        (json!({"domain": "Example.org"}), "domain \"Example.org\""),
        (
            json!({"domain": "x.kubernetes.io"}),
            "a name of Kubernetes' own",
        ),
        (json!({"domain": ""}), "domain \"\""),
        (json!({"kubeletDir": "kubelet"}), "kubeletDir kubelet"),
        (json!({"kubeletDir": long}), "is too long"),
        (json!({"uplink": "a/b"}), "uplink \"a/b\""),
        (json!({"uplink": ""}), "uplink \"\""),
        (json!({"tun": 0}), "tun 0 is not from 1 to 1000"),
        (json!({"tun": 1001}), "tun 1001"),
        (json!({"tun": -1}), "-1"),
        (
            json!({"tun": null}),
            "none of the keys ingress, egress and tun",
        ),
        (json!({"ingress": {"unitMbit": 0}}), "ingress: unitMbit 0"),
        (
            json!({"egress": {"unitMbit": 100_001}}),
            "egress: unitMbit 100001",
        ),
        (
            json!({"egress": {"unitMbit": 10, "capacityMbit": 9}}),
            "capacityMbit 9",
        ),
        (json!({"egress": {}}), "unitMbit"),
        (json!({"egress": {"unit": 1}}), "unknown field `unit`"),
        (json!({"ingres": {}}), "unknown field `ingres`"),
        (
            json!({"egress": {"unitMbit": 1, "capacityMbit": 20_000}}),
            "20003 devices are more than 10000, the most of a node: set unitMbit to 3 or more",
        ),
    ]
}

#[test]
fn pods_are_limited_to_what_the_kubelet_allocated_to_them() {
    let host = node();
    let kubelet = Kubelet::start(&root(&host));
    let agent = Agent::start(&host, &three(&host));
    kubelet.wait_for(INGRESS, 1_000);
    let checkpoint = plugins(&host).join("kubelet_internal_checkpoint");
    let networks = [("a", 2), ("b", 3)].map(|(name, devices)| {
        kubelet.allocate(name, INGRESS, devices).unwrap();
        let sandbox = host.sandbox(name);
        let joined = host.bridge_v4().add(&sandbox);
        let network = host.bandwidth().with("podResources", true);
        let network = network.with("kubeletCheckpoint", json!(checkpoint));
        let network = network.with("prevResult", joined.clone());
        let uid = format!("IgnoreUnknown=1;K8S_POD_UID={name}");
        network.on("ADD", &sandbox).args(&uid).ok();
        let link = joined["interfaces"][1]["name"].as_str().unwrap().to_owned();
        (network, sandbox, link)
    });
    let rates = || {
        networks.each_ref().map(|(_, _, link)| {
            let limit = host.qdiscs(link).into_iter().find(|it| it["kind"] == "tbf");
            limit.map(|it| it["options"]["rate"].as_u64().unwrap() * 8 / 1_000_000)
        })
    };
    assert_eq!(rates(), [Some(20), Some(30)]);
    // Limits and DEL need no agent and no checkpoint.
    drop(agent);
    fs::remove_file(&checkpoint).unwrap();
    let (network, sandbox, _) = &networks[0];
    network.on("DEL", sandbox).ok();
    assert_eq!(rates()[1], Some(30));
}
