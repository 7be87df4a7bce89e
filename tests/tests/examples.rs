//! Every file of conf-examples/ does what it is an example of.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tests::traffic::tcp_by_port;
use tests::{Host, Invocation, Place as _, Sandbox};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf-examples")
}

fn examples() -> Vec<Value> {
    let files = fs::read_dir(directory())
        .unwrap()
        .map(|file| file.unwrap().path());
    let lists = files.filter(|file| file.extension().is_some_and(|it| it == "conflist"));
    let parsed = lists.map(|file| {
        let read = serde_json::from_str(&fs::read_to_string(&file).unwrap());
        read.unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    });
    parsed.collect()
}

fn cnitool(host: &Host, verb: &str, network: &Value, sandbox: &Sandbox) -> Value {
    let words = [
        verb,
        network["name"].as_str().unwrap(),
        sandbox.path().to_str().unwrap(),
    ];
    let mapping = json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"});
    let mappings = if sandbox.name() == "b" {
        json!([])
    } else {
        json!([mapping])
    };
    let tool = host
        .plugin("cnitool")
        .env("NETCONFPATH", directory())
        .env("CAP_ARGS", json!({"portMappings": mappings}).to_string());
    words.iter().fold(tool, Invocation::argument).ok()
}

fn forwards_ports(network: &Value) -> bool {
    let plugins = network["plugins"].as_array().unwrap();
    plugins.iter().any(|plugin| plugin["type"] == "portmap")
}

/// The addresses of a result without their prefix lengths.
fn addresses(result: &Value) -> Vec<&str> {
    let ips = result["ips"].as_array().unwrap().iter();
    ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap())
        .collect()
}

#[test]
fn every_example_attaches_two_sandboxes_that_reach_each_other() {
    let networks = examples();
    assert!(!networks.is_empty());
    for network in networks {
        let name = network["name"].as_str().unwrap();
        let host = Host::new();
        let [warm, a, b] = ["warm", "a", "b"].map(|name| host.sandbox(name));
        cnitool(&host, "add", &network, &warm);
        cnitool(&host, "del", &network, &warm);
        let before = host.snapshot();
        let results = [&a, &b].map(|sandbox| cnitool(&host, "add", &network, sandbox));
        for address in addresses(&results[1]) {
            assert!(a.pings(address), "{name}: {address}");
        }
        for gateway in results[0]["ips"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|ip| ip["gateway"].as_str())
        {
            assert!(a.pings(gateway), "{name}: {gateway}");
        }
        if forwards_ports(&network) {
            assert!(tcp_by_port(&host, "127.0.0.1:8080", (&a, 80)).is_some());
        }
        // CHECK came with 0.4.0.
        if network["cniVersion"].as_str().unwrap() >= "0.4.0" {
            cnitool(&host, "check", &network, &a);
        }
        cnitool(&host, "del", &network, &a);
        cnitool(&host, "del", &network, &b);
        host.snapshot().assert_same_as(&before);
        assert_eq!(a.links(), ["lo"], "{name}");
    }
}

/// That systemd runs it when it should was seen under systemd; what it runs is seen here.
#[test]
fn the_unit_runs_a_command_that_there_is() {
    let unit = fs::read_to_string(directory().join("systemd/cni-reload.service")).unwrap();
    let lines = unit.lines().filter_map(|line| {
        let line = line
            .strip_prefix("ExecStart=-")
            .or(line.strip_prefix("ExecReload="));
        line?.strip_prefix("/opt/cni/bin/cnitool ")
    });
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 2, "{unit}");
    let host = Host::new();
    for line in lines {
        let tool = host.plugin("cnitool");
        line.split(' ').fold(tool, Invocation::argument).ok();
    }
}
