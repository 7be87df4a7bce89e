//! The tools judge links that live in sandboxes alone by their records.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;

use serde_json::{Value, json};
use tests::leaks::age;
use tests::{Host, Inhabitant, Invocation, Network, Place as _, Sandbox, Tool, eventually};

/// Attaches sandboxes to a network of macvlan, by a runtime whose cache the tools do not know.
fn attached<'h>(host: &'h Host, pods: &[&Sandbox]) -> Tool<'h> {
    let tool = host.tool();
    let network = host.card();
    tool.configure("pods", &[network.config().clone()]);
    for pod in pods {
        network.add(pod);
    }
    age(&host.lease_dir());
    tool
}

/// Attaches the sandbox by the path of a process in it, as nerdctl does. Returns the process.
fn attached_by_process(host: &Host, pod: &Sandbox) -> Inhabitant {
    let inhabitant = pod.inhabitant();
    call(host, "ADD", pod).netns(inhabitant.netns()).ok();
    age(&host.lease_dir());
    inhabitant
}

/// Returns a call for the sandbox, without its path.
fn call(host: &Host, verb: &str, pod: &Sandbox) -> Invocation {
    let call = host.card().call(verb).container(pod.name());
    call.ifname("eth0")
}

/// Returns the states in the list of attachments, by container.
fn states(tool: &Tool<'_>) -> Vec<(Value, Value)> {
    let rows = tool.ps().into_iter();
    rows.map(|it| (it["container"].clone(), it["state"].clone()))
        .collect()
}

fn has_record(pod: &str) -> bool {
    Path::new(&format!("/run/cni/witness/cni:pods:{pod}:eth0")).exists()
}

#[test]
fn live_pod_stays_and_a_gone_one_is_removed() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let tool = attached(&host, &[&a, &b]);
    b.remove();
    let expected = [("a".into(), "live".into()), ("b".into(), "gone".into())];
    assert!(eventually(|| states(&tool) == expected));
    tool.run(&["gc", "pods"]).ok();
    assert!(a.pings("10.1.0.1") && has_record("a") && !has_record("b"));
    assert!(host.leases("pods").keys().eq(["10.1.0.2"]));
}

#[test]
fn pod_whose_process_ended_is_reported_and_stays() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = attached(&host, &[]);
    let inhabitant = attached_by_process(&host, &a);
    assert_eq!(states(&tool), [("a".into(), "live".into())]);
    drop(inhabitant);
    assert_eq!(states(&tool), [("a".into(), "unknown".into())]);
    // In another network namespace, the number of the sandbox's namespace means nothing.
    let elsewhere = ["unshare", "--net"].map(str::to_owned);
    let gc = tool.run(&["gc", "pods"]);
    gc.expect_failure(&["may be live", "without a process that is seen"]);
    let gc = tool.run(&["gc", "pods"]).under(&elsewhere);
    gc.expect_failure(&["may be live", "other processes may keep it"]);
    // The operator's list is older than the pod.
    let listed = tool.run(&["gc", "pods", "--valid", "other/eth0"]);
    let listed = listed.under(&elsewhere);
    listed.expect_failure(&["10.1.0.2 stays, because its link may exist"]);
    assert!(a.pings("10.1.0.1") && host.leases("pods").len() == 1);
}

/// The kernel gives the numbers of an ended process and of its namespace to others.
#[test]
fn sandbox_of_an_ended_process_is_gone_although_another_has_its_numbers() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let tool = attached(&host, &[]);
    let record = |pod| format!("/run/cni/witness/cni:pods:{pod}:eth0");
    let read = |pod| {
        let text = fs::read_to_string(record(pod)).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let inhabitant = attached_by_process(&host, &a);
    a.remove();
    assert_eq!(states(&tool), [("a".into(), "live".into())]);
    drop(inhabitant);
    assert!(eventually(|| states(&tool) == [("a".into(), "gone".into())]));
    let _other = attached_by_process(&host, &b);
    let (mut of_a, of_b) = (read("a"), read("b"));
    for key in ["netns", "numbered"] {
        of_a[key] = of_b[key].clone();
    }
    fs::write(record("a"), of_a.to_string()).unwrap();
    assert_eq!(
        states(&tool),
        [("a".into(), "gone".into()), ("b".into(), "live".into())]
    );
    call(&host, "DEL", &a).ok();
    assert!(b.pings("10.1.0.1") && has_record("b") && !has_record("a"));
    assert!(host.leases("pods").keys().eq(["10.1.0.3"]));
}

/// Sockets keep a sandbox after its processes, such as TCP whose peer is away. Here, the test does.
#[test]
fn del_without_the_sandbox_deletes_the_link_that_only_sockets_keep() {
    for is_of_process in [false, true] {
        let host = Host::new();
        let a = host.sandbox("a");
        let inhabitant = is_of_process.then(|| attached_by_process(&host, &a));
        if !is_of_process {
            host.card().add(&a);
        }
        let socket = a.enter(|| UdpSocket::bind("10.1.0.2:9").unwrap());
        a.remove();
        drop(inhabitant);
        call(&host, "DEL", &a).ok();
        drop(socket);
        assert!(host.leases("pods").is_empty() && !has_record("a"));
    }
}

#[test]
fn del_is_repeated_after_the_link_that_only_sockets_kept() {
    let host = Host::new();
    let a = host.sandbox("a");
    let result = r#"{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.9/24"}]}"#;
    let fails_once = "mkdir /run/failed 2>/dev/null && exit 1 || exit 0";
    let body = format!(
        "[ -n \"$(cat)\" ]\n[ $CNI_COMMAND = DEL ] && {{ {fails_once}; }}\necho '{result}'"
    );
    host.script("once", &body);
    let network = host.card().with("ipam", json!({"type": "once"}));
    network.add(&a);
    let socket = a.enter(|| UdpSocket::bind("10.1.0.9:9").unwrap());
    a.remove();
    network.on("DEL", &a).error().expect(100, &["once"]);
    assert!(!has_record("a"));
    network.del(&a);
    drop(socket);
}

#[test]
fn del_waits_for_the_end_of_a_sandbox_whose_link_lost_its_tag() {
    let host = Host::new();
    let a = host.sandbox("a");
    let inhabitant = attached_by_process(&host, &a);
    a.ip("link set eth0 alias other");
    // The request waits for the neighbour's address, and keeps its socket.
    assert!(!a.pings("10.1.0.77"));
    a.remove();
    drop(inhabitant);
    call(&host, "DEL", &a).ok();
    assert!(host.leases("pods").is_empty() && !has_record("a"));
}

#[test]
fn sandbox_is_found_by_a_process_in_it_although_its_path_leads_to_another() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let tool = attached(&host, &[]);
    let (inhabitant, other) = (attached_by_process(&host, &a), b.inhabitant());
    let record = "/run/cni/witness/cni:pods:a:eth0";
    let paths = [&inhabitant, &other].map(|it| it.netns().display().to_string());
    let text = fs::read_to_string(record).unwrap();
    fs::write(record, text.replace(&paths[0], &paths[1])).unwrap();
    assert_eq!(states(&tool), [("a".into(), "live".into())]);
    call(&host, "DEL", &a).netns(other.netns()).ok();
    assert!(a.pings("10.1.0.1") && host.leases("pods").len() == 1);
    drop(inhabitant);
    assert_eq!(states(&tool), [("a".into(), "unknown".into())]);
}

#[test]
fn sandbox_of_other_mounts_is_not_judged_by_its_missing_path() {
    let host = Host::new();
    let a = host.sandbox("a");
    let tool = attached(&host, &[&a]);
    let script = "mount -t tmpfs none /run/netns && exec \"$@\"";
    let elsewhere = ["unshare", "--mount", "sh", "-c", script, "sh"].map(str::to_owned);
    let gc = tool.run(&["gc", "pods"]).under(&elsewhere);
    gc.expect_failure(&["may be live"]);
    assert!(has_record("a") && host.leases("pods").len() == 1);
}

/// An IPAM plugin that uses the link, such as `dhcp`, is called before the link is deleted.
#[test]
fn lease_over_the_link_stays_if_the_path_leads_to_another_process() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    // The kernel may give this number to another namespace later, so it proves nothing without the tag.
    host.ip("netns set a 7");
    let (inhabitant, other) = (a.inhabitant(), b.inhabitant());
    let result = r#"{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.9/24"}]}"#;
    // A plugin that DEL starts and does not need gets no request.
    let answer = format!("[ $CNI_COMMAND != ADD ] || echo '{result}'");
    let call = "[ -n \"$(cat)\" ] || exit 1\necho $CNI_COMMAND >>/run/calls";
    host.script("dhcp", &format!("{call}\n{answer}"));
    let network = host.card().with("ipam", json!({"type": "dhcp"}));
    let call = |verb, netns: &Inhabitant| {
        let call = network.call(verb).container("a").ifname("eth0");
        call.netns(netns.netns()).ok();
    };
    call("ADD", &inhabitant);
    let record = "/run/cni/witness/cni:pods:a:eth0";
    let paths = [&inhabitant, &other].map(|it| it.netns().display().to_string());
    let text = fs::read_to_string(record).unwrap();
    fs::write(record, text.replace(&paths[0], &paths[1])).unwrap();
    a.ip("link set eth0 alias other");
    drop(inhabitant);
    call("DEL", &other);
    network.gc(&[]).error().expect(100, &["may exist"]);
    assert_eq!(fs::read_to_string("/run/calls").unwrap(), "ADD\nGC\n");
    assert!(a.pings("10.1.0.1"));
    call("DEL", &a.inhabitant());
    assert_eq!(fs::read_to_string("/run/calls").unwrap(), "ADD\nGC\nDEL\n");
    assert!(!a.has_link("eth0") && !has_record("a"));
}

#[test]
fn gc_keeps_the_lease_of_an_unknown_pod_alone() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    // The kernel may give this number to another namespace later.
    host.ip("netns set a 7");
    let network = host.card();
    let inhabitant = a.inhabitant();
    let add = network.call("ADD").container("a").ifname("eth0");
    add.netns(inhabitant.netns()).ok();
    network.add(&b);
    a.ip("link set eth0 alias other");
    drop(inhabitant);
    b.remove();
    network.gc(&[]).error().expect(100, &["may exist"]);
    assert!(host.leases("pods").keys().eq(["10.1.0.2"]) && a.pings("10.1.0.1"));
    assert!(has_record("a") && !has_record("b"));
}

#[test]
fn del_spares_the_link_that_another_attachment_has_by_now() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.card();
    network.add(&a);
    network.del(&a);
    let call = |verb, network: &Network<'_>, container| network.on(verb, &a).container(container);
    call("ADD", &network, "later").ok();
    network.del(&a);
    let other = network.with("name", json!("others"));
    call("ADD", &other, "later")
        .error()
        .expect(100, &["has an interface eth0 already"]);
    call("DEL", &other, "later").ok();
    assert!(a.pings("10.1.0.1") && has_record("later"));
}

/// Attaches the pod to two networks, `pods` by eth0 and `others` by net1.
fn attached_twice<'h>(host: &'h Host, a: &Sandbox) -> [Network<'h>; 2] {
    let network = host.card();
    network.add(a);
    let other = network.clone().with("name", "others");
    other.on("ADD", a).ifname("net1").ok();
    [network, other]
}

#[test]
fn del_deletes_the_link_that_a_process_calls_another_attachments() {
    let host = Host::new();
    let a = host.sandbox("a");
    let [network, other] = attached_twice(&host, &a);
    a.ip("link set eth0 alias cni:others/a/net1");
    network.del(&a);
    assert!(!a.has_link("eth0") && host.leases("pods").is_empty());
    a.ip("link set net1 alias cni:pods/a/eth0");
    other.on("DEL", &a).ifname("net1").ok();
    assert!(!a.has_link("net1") && host.leases("others").is_empty());
}

#[test]
fn del_spares_the_other_link_of_a_pod_that_swaps_names() {
    let host = Host::new();
    let a = host.sandbox("a");
    let [network, other] = attached_twice(&host, &a);
    let kept = a.mac("net1");
    for (from, to) in [("eth0", "x"), ("net1", "eth0"), ("x", "net1")] {
        a.ip(&format!("link set {from} down"));
        a.ip(&format!("link set {from} name {to}"));
    }
    network.del(&a);
    assert_eq!(a.links(), ["eth0", "lo"]);
    assert_eq!(a.mac("eth0"), kept);
    other.on("DEL", &a).ifname("net1").ok();
    assert_eq!(a.links(), ["lo"]);
}

#[test]
fn del_with_another_type_deletes_the_link_of_the_former_one() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.card().with("cniVersion", "1.1.0");
    let changed = network.clone().with("type", "tap").without("master");
    for verb in ["DEL", "GC"] {
        network.add(&a);
        match verb {
            "DEL" => changed.del(&a),
            _ => drop(changed.gc(&[]).ok()),
        }
        assert!(
            !a.has_link("eth0") && host.leases("pods").is_empty(),
            "{verb}"
        );
    }
}

#[test]
fn del_needs_no_readable_record_unless_the_sandbox_is_not_found() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.card();
    for text in ["", "{", "{\"netns\": 1}"] {
        network.add(&a);
        fs::write("/run/cni/witness/cni:pods:a:eth0", text).unwrap();
        let outcome = network.on("DEL", &a).netns("").run();
        outcome.ok();
        assert!(outcome.stderr.contains("/run/cni/witness"), "{outcome:?}");
        assert!(a.pings("10.1.0.1") && host.leases("pods").len() == 1);
        network.del(&a);
        assert!(!a.has_link("eth0") && host.leases("pods").is_empty());
        assert!(!has_record("a"));
    }
}

#[test]
fn second_sandbox_of_an_attachment_is_refused_while_the_first_one_exists() {
    let host = Host::new();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let network = host.card();
    network.add(&a);
    let in_b = |verb| network.on(verb, &b).container("a");
    in_b("ADD")
        .error()
        .expect(100, &["is attached already in the sandbox /run/netns/a"]);
    in_b("DEL").ok();
    assert!(a.pings("10.1.0.1") && has_record("a"));
    assert!(host.leases("pods").keys().eq(["10.1.0.2"]));
}

/// After another network of the same pod, the namespace has a number that the kernel chose.
#[test]
fn del_without_a_path_deletes_the_link_of_a_pod_with_several_networks() {
    let host = Host::new();
    let a = host.sandbox("a");
    host.ip("link add near type veth peer name far");
    host.ip(&format!("link set far netns {}", a.name()));
    let inhabitant = attached_by_process(&host, &a);
    drop(inhabitant);
    assert!(a.pings("10.1.0.1"));
    call(&host, "DEL", &a).netns("").ok();
    assert!(!a.has_link("eth0") && host.leases("pods").is_empty());
}

#[test]
fn link_that_a_process_renamed_is_deleted() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = host.card().with("cniVersion", "1.1.0");
    for verb in ["DEL", "GC"] {
        network.add(&a);
        a.ip("link set eth0 down");
        a.ip("link set eth0 name other");
        a.ip("link add eth0 type veth peer name eth1");
        match verb {
            "DEL" => network.del(&a),
            _ => drop(network.gc(&[]).ok()),
        }
        assert!(!a.has_link("other") && a.has_link("eth0"), "{verb}");
        assert!(host.leases("pods").is_empty());
        a.ip("link delete eth0");
    }
}
