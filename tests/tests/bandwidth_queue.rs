//! bandwidth: the queues of packets that wait. The tests need a kernel with `fq_codel`.

use serde_json::{Value, json};
use tests::Place;
use tests::latency::{Direction, Limit, Line, Load, Outcome, Span, Trial};
use tests::limited::RoutedContainer;

/// Runs a load towards the container beside small requests.
fn wait(scene: &RoutedContainer, rate: u64, load: Load, limit: Limit) -> Outcome {
    let trial = Trial {
        rate,
        direction: Direction::Ingress,
        load,
    };
    let line = Line {
        client: &scene.outside,
        server: &scene.a,
        address: NEAR,
        link: "eth0",
    };
    trial.over(&line, limit, Span::seconds(4))
}

/// Returns the qdisc of a link with this handle, as `tc` shows it.
#[track_caller]
fn qdisc(place: &impl Place, link: &str, handle: &str) -> Value {
    let qdiscs = place.qdiscs(link);
    let mut found = qdiscs.iter().filter(|it| it["handle"] == handle);
    let found = found.next().cloned();
    found.unwrap_or_else(|| panic!("{link} has no {handle}: {qdiscs:#?}"))
}

/// Checks the queue of a link: its parent, its limit in packets and its times in microseconds.
#[track_caller]
fn expect_queue(place: &impl Place, (link, handle): (&str, &str), wanted: &Value) {
    let queue = qdisc(place, link, handle);
    let options = &queue["options"];
    let times = ["target", "interval"].map(|it| options[it].as_u64().unwrap().div_ceil(10) * 10);
    let held = json!([queue["kind"], queue["parent"], options["limit"], times]);
    assert_eq!(held, *wanted, "{queue}");
}

const NEAR: &str = "10.1.0.2";

#[test]
fn waiting_packets_have_a_queue_for_each_flow() {
    let scene = RoutedContainer::new();
    let (host, a) = (&scene.host, &scene.a);
    let network = scene.limited(10_000_000);
    let result = network.add(a);
    let fair = json!(["fq_codel", "b0:1", 206, [5000, 100_000]]);
    expect_queue(host, (scene.host_link(), "b1:"), &fair);
    expect_queue(a, ("eth0", "b1:"), &fair);
    network.check(a, &result).ok();
    let slower = scene.limited(1_000_000);
    slower.check(a, &result).error().expect(100, &["125000"]);
    slower.add(a);
    let fair = json!(["fq_codel", "b0:1", 41, [18_170, 113_170]]);
    expect_queue(host, (scene.host_link(), "b1:"), &fair);
    expect_queue(a, ("eth0", "b1:"), &fair);
    slower.check(a, &result).ok();
}

#[test]
fn limits_for_subnets_have_these_queues_too() {
    let scene = RoutedContainer::new();
    let (host, a, link) = (&scene.host, &scene.a, scene.host_link());
    let shaped = |rate| {
        let network = scene.limited(rate);
        network.with("shapedSubnets", json!(["192.0.2.0/24"]))
    };
    let result = shaped(10_000_000).add(a);
    shaped(10_000_000).check(a, &result).ok();
    let fair = json!(["fq_codel", "b1:1", 206, [5000, 100_000]]);
    expect_queue(host, (link, "b2:"), &fair);
    let before = host.tc(&format!("filter show dev {link} parent b0:"));
    shaped(1_000_000).add(a);
    let fair = json!(["fq_codel", "b1:1", 41, [18_170, 113_170]]);
    expect_queue(host, (link, "b2:"), &fair);
    shaped(1_000_000).check(a, &result).ok();
    let after = host.tc(&format!("filter show dev {link} parent b0:"));
    assert_eq!(before, after);
}

#[test]
fn operator_may_replace_the_queue() {
    let scene = RoutedContainer::new();
    let (host, a, link) = (&scene.host, &scene.a, scene.host_link());
    let network = scene.limited(10_000_000);
    let result = network.add(a);
    host.tc(&format!(
        "qdisc replace dev {link} parent b0:1 handle 7: sfq"
    ));
    network.check(a, &result).ok();
    scene.limited(5_000_000).add(a);
    assert_eq!(qdisc(host, link, "7:")["kind"], "sfq");
    assert_eq!(
        qdisc(host, link, "b0:")["options"]["rate"].as_u64(),
        Some(625_000)
    );
}

#[test]
fn second_add_sets_the_queue_that_an_equal_token_bucket_lacks() {
    let scene = RoutedContainer::new();
    let (host, a, link) = (&scene.host, &scene.a, scene.host_link());
    // The burst is smaller than 2 ms of the rate, so the TBF splits nothing.
    let network = scene.limited(100_000_000);
    let network = network.with("runtimeConfig.bandwidth.ingressBurst", 160_000);
    let result = network.add(a);
    // With the same parameters, and without an fq_codel.
    host.tc(&format!("qdisc del dev {link} root"));
    host.tc(&format!(
        "qdisc add dev {link} root handle b0: tbf rate 100mbit burst 20000 limit 332500"
    ));
    network.check(a, &result).ok();
    network.add(a);
    let fair = json!(["fq_codel", "b0:1", 2064, [5000, 100_000]]);
    expect_queue(host, (link, "b1:"), &fair);
    network.check(a, &result).ok();
}

#[test]
fn changed_queue_is_reported_and_restored() {
    let scene = RoutedContainer::new();
    let (host, a, link) = (&scene.host, &scene.a, scene.host_link());
    let network = scene.limited(10_000_000);
    let result = network.add(a);
    let change = format!("qdisc change dev {link} handle b1: parent b0:1 fq_codel target 90ms");
    host.tc(&change);
    network.check(a, &result).error().expect(100, &[link]);
    network.add(a);
    network.check(a, &result).ok();
}

#[test]
fn queue_of_a_low_rate_is_too_short_for_timeouts_of_tcp() {
    let scene = RoutedContainer::new();
    let (host, a, link) = (&scene.host, &scene.a, scene.host_link());
    for (rate, packets, times) in [
        (64_000, 5, [283_880, 378_880]),
        (256_000, 10, [70_970, 165_970]),
    ] {
        let network = scene.limited(rate);
        let result = network.add(a);
        let fair = json!(["fq_codel", "b0:1", packets, times]);
        expect_queue(host, (link, "b1:"), &fair);
        expect_queue(a, ("eth0", "b1:"), &fair);
        for queue in [qdisc(host, link, "b1:"), qdisc(a, "eth0", "b1:")] {
            assert_eq!(queue["options"]["quantum"], 300);
        }
        network.check(a, &result).ok();
    }
    // At 256 kbit/s. With 64 packets, connections waited longer than their timeouts, and packets sent
    // twice had queues of their own. Half of the requests then took 158 ms or longer.
    let limited = wait(&scene, 256_000, Load::Tcp, Limit::Set);
    assert!(limited.wait(50).unwrap() < 150.0, "{limited:?}");
}

#[test]
fn ping_passes_before_the_packets_of_other_flows() {
    // With a chosen burst, as long as a tenth of a second, and with the plugin's.
    for (rate, burst) in [(10_000_000, 1_000_000), (10_000_000, 0), (1_000_000, 0)] {
        let scene = RoutedContainer::new();
        let loads = [Load::Tcp, Load::Udp];
        let controls = loads.map(|load| wait(&scene, rate, load, Limit::None));
        let network = scene.limited(rate);
        let network = network.with("runtimeConfig.bandwidth.ingressBurst", burst);
        network.add(&scene.a);
        for (load, control) in loads.into_iter().zip(controls) {
            let limited = wait(&scene, rate, load, Limit::Set);
            let told = format!("{rate} {load:?}: {limited:?}, control {control:?}");
            assert!(limited.waits.len() >= 20, "{told}");
            // The plain queue of earlier releases delays each packet by 75 and 121 ms.
            let [limited, control] = [limited, control].map(|it| it.wait(50).unwrap());
            assert!(limited - control < 40.0, "{told}");
        }
    }
}
