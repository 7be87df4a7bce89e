//! cnitool ps: attachments from all sources together, and from each source alone.

use std::fs;

use serde_json::{Value, json};
use tests::leaks::age;
use tests::{Host, Place as _, Sandbox, Tool};

const PORTS: [&str; 2] = ["8080:80", "8053:53/udp"];

/// Configures the network `pods` of bridge, portmap and bandwidth.
fn limited(host: &Host) -> Tool<'_> {
    let tool = host.pods();
    let bandwidth = json!({
        "type": "bandwidth", "ingressRate": 10_000_000, "egressRate": 1_000_000,
    });
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let bridge = host
        .bridge()
        .with("isDefaultGateway", true)
        .with("ipMasq", true);
    tool.configure("pods", &[bridge.config().clone(), portmap, bandwidth]);
    tool
}

fn attach(tool: &Tool<'_>, a: &Sandbox) {
    let ports = json!({"portMappings": [
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 8053, "containerPort": 53, "protocol": "udp"},
    ]});
    let arguments = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0";
    let add = tool.on("add", "pods", a).env("CAP_ARGS", ports.to_string());
    add.env("CNI_ARGS", arguments).ok();
}

fn known_by(row: &Value) -> Vec<&str> {
    let traces = row["knownBy"].as_array().unwrap();
    traces.iter().map(|it| it.as_str().unwrap()).collect()
}

#[test]
fn attachment_is_one_line_with_all_that_is_known() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = limited(&host);
    assert_eq!(tool.ps(), [] as [Value; 0]);
    attach(&tool, &a);
    let [row] = tool.ps().try_into().unwrap();
    let row: Value = row;
    let container = row["container"].as_str().unwrap();
    assert!(container.starts_with("cnitool-"), "{row:#}");
    assert_eq!(row["network"], "pods");
    assert_eq!(
        (&row["interface"], &row["state"]),
        (&json!("eth0"), &json!("live"))
    );
    assert_eq!(row["pod"], json!({"namespace": "shop", "name": "web-0"}));
    assert_eq!(row["addresses"], json!(["10.1.0.2", "fd00:1::2"]));
    assert_eq!(row["ports"], json!(["8053:53/udp", "8080:80/tcp"]));
    assert_eq!(
        row["limits"],
        json!({"ingress": 10_000_000, "egress": 1_000_000})
    );
    assert!(row["since"].as_str().unwrap().ends_with('Z'), "{row:#}");
    assert_eq!(known_by(&row), ["cache", "link", "element", "lease"]);
    let link = row["hostLink"].as_str().unwrap();
    let alias = host.link(link)["ifalias"].as_str().unwrap().to_owned();
    assert_eq!(alias, format!("cni:pods/{container}/eth0"));
    tool.on("del", "pods", &a).ok();
    assert_eq!(tool.ps(), [] as [Value; 0]);
}

#[test]
fn page_has_a_line_for_each_attachment() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = limited(&host);
    attach(&tool, &a);
    let page = tool.run(&["ps"]).run().stdout;
    assert_eq!(page.lines().count(), 2, "{page}");
    assert!(page.starts_with("NETWORK  CONTAINER      POD "), "{page}");
    for word in ["shop/web-0", "8053:53/udp,8080:80/tcp", "in 10M out 1M"] {
        assert!(page.contains(word), "{word}: {page}");
    }
}

#[test]
fn an_attachment_of_one_source_has_blanks() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = limited(&host);
    attach(&tool, &a);
    fs::remove_dir_all(tool.results()).unwrap();
    fs::remove_dir_all(host.lease_dir()).unwrap();
    let [row] = tool.ps().try_into().unwrap();
    let row: Value = row;
    assert_eq!(known_by(&row), ["link", "element"]);
    assert_eq!(
        (&row["network"], &row["interface"]),
        (&json!("pods"), &json!("eth0"))
    );
    assert_eq!(row["ports"], json!(["8053:53/udp", "8080:80/tcp"]));
    assert_eq!((&row["pod"], &row["since"]), (&Value::Null, &Value::Null));
    host.run("nft", &["flush ruleset"]);
    let [row] = tool.ps().try_into().unwrap();
    let row: Value = row;
    assert_eq!(known_by(&row), ["link"]);
    assert_eq!((&row["addresses"], &row["ports"]), (&json!([]), &json!([])));
    assert_eq!(row["limits"]["ingress"], 10_000_000);
    let port = row["hostLink"].as_str().unwrap();
    let page = tool.run(&["ps"]).run().stdout;
    assert!(
        page.contains("INTERFACE  STATE  ADDRESSES  HOST LINK"),
        "{page}"
    );
    assert!(
        page.contains(&format!("eth0       live              {port}")),
        "{page}"
    );
}

#[test]
fn leases_alone_are_listed_with_their_age() {
    let host = Host::new();
    let tool = limited(&host);
    let pods = host.lease_dir().join("pods");
    fs::create_dir_all(&pods).unwrap();
    fs::write(pods.join("10.1.0.9"), "c1\r\neth0").unwrap();
    fs::write(pods.join("10.1.0.8"), "c2").unwrap();
    fs::write(pods.join("10.1.0.7"), "").unwrap();
    let rows = tool.ps();
    let told = |row: &Value| {
        [&row["container"], &row["interface"], &row["addresses"][0]].map(Clone::clone)
    };
    let told: Vec<_> = rows.iter().map(told).collect();
    let states: Vec<_> = rows.iter().map(|it| it["state"].clone()).collect();
    assert_eq!(states, ["unknown", "new", "new"]);
    age(&host.lease_dir());
    // Without the bridge, the host may be another namespace than that of the pods.
    assert_eq!(tool.ps()[1]["state"], "unknown");
    host.ip("link add cni0 type bridge");
    assert_eq!(tool.ps()[1]["state"], "gone");
    let null = Value::Null;
    assert_eq!(
        told,
        [
            [null.clone(), null.clone(), json!("10.1.0.7")],
            [json!("c1"), json!("eth0"), json!("10.1.0.9")],
            [json!("c2"), null, json!("10.1.0.8")],
        ]
    );
    assert!(rows.iter().all(|it| it["since"].is_string()));
}

#[test]
fn attachments_of_the_reference_are_listed_by_cache_and_lease() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = host.tool();
    let bridge = host.bridge_v4().config().clone();
    tool.configure("pods", &[bridge]);
    let text = fs::read_to_string(host.dir().join("net.d/pods.conflist")).unwrap();
    tool.write("pods.conflist", &text.replace("1.1.0", "1.0.0"));
    tool.on("add", "pods", &a)
        .env("CNI_PATH", tests::REFERENCE)
        .ok();
    let [row] = tool.ps().try_into().unwrap();
    let row: Value = row;
    assert_eq!(known_by(&row), ["cache", "lease"]);
    assert_eq!(row["addresses"], json!(["10.1.0.2"]));
    assert!(host.has_link(row["hostLink"].as_str().unwrap()), "{row:#}");
    assert_eq!(row["ports"], json!([]));
}

#[test]
fn networks_are_distinguished_and_sorted() {
    let host = Host::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| host.sandbox(name));
    let tool = host.pods();
    tool.configure_all("others", 2);
    tool.add("pods", &a, &PORTS);
    tool.add("pods", &b, &[]);
    tool.add("others", &c, &["9090:80"]);
    let rows = tool.ps();
    let networks: Vec<_> = rows
        .iter()
        .map(|it| it["network"].as_str().unwrap())
        .collect();
    assert_eq!(networks, ["others", "pods", "pods"]);
    assert_eq!(rows[0]["ports"], json!(["9090:80/tcp"]));
}

#[test]
fn readers_may_close_the_pipe_early() {
    let host = Host::new();
    let tool = limited(&host);
    for words in ["ps", "ps --json", "doctor", "metrics"] {
        // true(1) ends, and with it the pipe, before cnitool starts.
        tool.in_shell(&format!(
            "said=$({{ {{ sleep 0.2; cnitool {words} 2>&3; echo $? >&3; }} | true; }} 3>&1); \
             test \"$said\" = 0"
        ));
    }
}
