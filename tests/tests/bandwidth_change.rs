//! bandwidth: a second ADD with another rate, while traffic runs.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGsoSegment;
use serde_json::{Value, json};
use tests::limited::RoutedContainer;
use tests::stream::stream;
use tests::traffic::{self, Flood};
use tests::{Place as _, Sandbox, eventually};

/// Towards the container, and from it.
#[derive(Debug, Clone, Copy)]
enum Direction {
    Ingress,
    Egress,
}

/// Limits both directions, with more keys.
fn limit(scene: &RoutedContainer, rate: u64, more: &[(&str, Value)]) {
    let network = scene.limited(rate);
    let network = more.iter().fold(network, |network, (key, value)| {
        network.with(key, value.clone())
    });
    let result = network.add(&scene.a);
    network.check(&scene.a, &result).ok();
}

/// Returns the ends of a direction with their addresses, and the link of the receiver.
fn ends(
    scene: &RoutedContainer,
    direction: Direction,
) -> [(&Sandbox, &'static str, &'static str); 2] {
    let near = (&scene.a, "10.1.0.2", "eth0");
    let far = (&scene.outside, "192.0.2.2", "outside");
    match direction {
        Direction::Ingress => [far, near],
        Direction::Egress => [near, far],
    }
}

const BOTH: [Direction; 2] = [Direction::Ingress, Direction::Egress];

/// Checks that a connection has the last rate a second after ADD, and keeps it. The ADDs of all
/// rates but the first follow each other at once.
fn expect_new_rate(direction: Direction, rates: &[u64], more: &[(&str, Value)]) {
    let scene = RoutedContainer::new();
    let (told, to) = (format!("{direction:?} {rates:?}"), *rates.last().unwrap());
    limit(&scene, rates[0], more);
    let [client, server] = ends(&scene, direction);
    let start = Instant::now();
    let end = &AtomicUsize::new(usize::MAX);
    thread::scope(|scope| {
        let lasts = |second| second < end.load(Ordering::Relaxed);
        let ends = ((client.0, client.1), server);
        let flooding = scope.spawn(move || traffic::flood_while(Flood::Tcp, ends.0, ends.1, lasts));
        traffic::wait_until(Instant::now() + Duration::from_millis(1500));
        for rate in &rates[1..] {
            limit(&scene, *rate, more);
        }
        let new = usize::try_from(start.elapsed().as_secs() + 2).unwrap();
        end.store(new + 3, Ordering::Relaxed);
        let rates = flooding.join().unwrap();
        let told = format!("{told} from {new} on: {rates:?}");
        let limit = f64::from(u32::try_from(to).unwrap());
        let later = &rates[new..];
        // A busy machine makes single seconds lower, and the next one higher.
        let seconds = f64::from(u32::try_from(later.len()).unwrap());
        assert!(later.iter().sum::<f64>() < limit * seconds * 1.15, "{told}");
        let best = later.iter().copied().fold(0.0, f64::max);
        assert!(best > limit * 0.8, "{told}");
    });
}

#[test]
fn connection_has_the_new_rate_within_a_second() {
    for direction in BOTH {
        expect_new_rate(direction, &[10_000_000, 20_000_000], &[]);
        expect_new_rate(direction, &[20_000_000, 5_000_000], &[]);
    }
}

#[test]
fn segments_that_wait_do_not_stop_a_slower_limit() {
    // At 1 Gbit/s, segments of 64 KiB wait in one piece. They exceed the burst of the second rate,
    // but not that of the first one.
    for direction in BOTH {
        expect_new_rate(direction, &[1_000_000_000, 40_000_000], &[]);
        expect_new_rate(direction, &[1_000_000_000, 1_000_000], &[]);
    }
}

#[test]
fn segments_that_wait_do_not_stop_a_slower_limit_for_subnets() {
    let subnets = [("shapedSubnets", json!(["192.0.2.0/24"]))];
    for direction in BOTH {
        expect_new_rate(direction, &[1_000_000_000, 1_000_000], &subnets);
    }
}

#[test]
fn segments_that_wait_do_not_stop_the_second_of_two_slower_limits() {
    // The first ADD shows the kernel's pieces of 20 Mbit/s, while longer segments still wait.
    for direction in BOTH {
        let scene = RoutedContainer::new();
        limit(&scene, 300_000_000, &[]);
        let [(client, ..), (server, address, _)] = ends(&scene, direction);
        let there = server.enter(|| UdpSocket::bind((address, 0)).unwrap());
        let sockets = [(); 8].map(|()| {
            let socket = client.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap());
            socket.connect(there.local_addr().unwrap()).unwrap();
            setsockopt(&socket, UdpGsoSegment, &1400).unwrap();
            socket
        });
        let sending = AtomicBool::new(true);
        thread::scope(|scope| {
            for socket in &sockets {
                scope.spawn(|| {
                    let segment = vec![0; 44 * 1400];
                    while sending.load(Ordering::Relaxed) {
                        socket.send(&segment).ok();
                    }
                });
            }
            traffic::wait_until(Instant::now() + Duration::from_millis(500));
            limit(&scene, 20_000_000, &[]);
            limit(&scene, 2_000_000, &[]);
            sending.store(false, Ordering::Relaxed);
        });
        assert!(eventually(|| client.pings(address)), "{direction:?}");
    }
}

/// Checks that no packet disappears while the rate changes, except for those that the limit counts
/// as dropped.
fn expect_no_loss(more: &[(&str, Value)]) {
    let scene = RoutedContainer::new();
    limit(&scene, 10_000_000, more);
    for direction in BOTH {
        let dropped = || match direction {
            Direction::Ingress => scene.host.dropped(scene.host_link()),
            Direction::Egress => scene.a.dropped("eth0"),
        };
        let before = dropped();
        let [(client, ..), (server, address, _)] = ends(&scene, direction);
        let counts = stream(client, (server, address), || {
            for rate in [20, 5, 100, 10, 40, 6, 10] {
                limit(&scene, rate * 1_000_000, more);
                traffic::wait_until(Instant::now() + Duration::from_millis(100));
            }
        });
        let dropped = dropped() - before;
        let arrived = counts.received + counts.without_room;
        assert!(counts.sent > 100, "{counts:?}");
        assert!(
            arrived + dropped >= counts.sent,
            "{counts:?}, {dropped} dropped"
        );
        // The stream is slower than all rates.
        assert!(dropped * 20 < counts.sent, "{counts:?}, {dropped} dropped");
    }
}

#[test]
fn no_packet_is_lost_while_the_rate_changes() {
    expect_no_loss(&[]);
}

#[test]
fn no_packet_is_lost_while_the_rate_for_subnets_changes() {
    expect_no_loss(&[("shapedSubnets", json!(["192.0.2.0/24"]))]);
}
