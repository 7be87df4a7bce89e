//! `dhcp daemon` dies, and the next one keeps or releases the leases.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tests::dhcp::{
    DISCOVER, Daemon, OFFER, RELEASE, REQUEST, SOCKET, Server, alone, network, records,
};
use tests::{Example, Host, Place as _, eventually};

const ADDRESS: [u8; 4] = [10, 6, 0, 50];

/// Returns the path of the one record.
fn record_path() -> PathBuf {
    let mut entries = fs::read_dir(SOCKET.replace(".sock", ".leases")).unwrap();
    entries.next().unwrap().unwrap().path()
}

#[test]
fn lease_survives_a_killed_daemon() {
    let host = Host::new();
    let network = network(&host);
    let server = Server::renewing(&[ADDRESS]);
    let daemon = Daemon::start(&host);
    let a = host.sandbox("a");
    let result = network.add(&a);
    let discovered = server.seen_of(DISCOVER).len();
    drop(daemon);
    assert!(
        Path::new(SOCKET).exists(),
        "a killed daemon leaves its socket"
    );
    let renewals = server.seen_of(REQUEST).len();
    let _daemon = Daemon::start(&host);
    network.check(&a, &result).ok();
    assert!(eventually(|| server.seen_of(REQUEST).len() > renewals));
    assert_eq!(server.seen_of(DISCOVER).len(), discovered);
    assert_eq!(a.addresses("eth0"), ["10.6.0.50/24"]);
    network.del(&a);
    server.sees(|it| it.kind == RELEASE && it.from.ip().octets() == ADDRESS);
}

#[test]
fn lease_that_expired_while_no_daemon_ran_is_replaced() {
    let host = Host::new();
    let network = network(&host);
    let daemon = Daemon::start(&host);
    let a = host.sandbox("a");
    let server = Server::leasing(&[ADDRESS], 2);
    network.add(&a);
    drop((daemon, server));
    let end = records()[0]["lease"]["end"]["secs"].as_u64().unwrap() + 1;
    let seconds = || {
        let uptime = fs::read_to_string("/proc/uptime").unwrap();
        uptime.split('.').next().unwrap().parse::<u64>().unwrap()
    };
    assert!(eventually(|| seconds() >= end));
    let _server = Server::leasing(&[[10, 6, 0, 51]], 60);
    let daemon = Daemon::start(&host);
    let is_replaced = eventually(|| a.addresses("eth0") == ["10.6.0.51/24"]);
    assert!(is_replaced, "{}", daemon.log());
    assert!(a.pings("10.6.0.1"));
}

#[test]
fn lease_without_a_record_is_confirmed_when_the_server_is_back() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = alone(&host, &a);
    let server = Server::leasing(&[ADDRESS], 60);
    let daemon = Daemon::start(&host);
    let result = network.add(&a);
    daemon.end();
    drop(server);
    fs::remove_dir_all(SOCKET.replace(".sock", ".leases")).unwrap();
    let _daemon = Daemon::impatient(&host);
    let check = network.check(&a, &result);
    check.error().expect(100, &["no DHCP server confirms"]);
    let _server = Server::leasing(&[ADDRESS], 60);
    assert!(eventually(|| check.run().status.success()));
}

#[test]
fn del_without_a_daemon_succeeds_and_the_next_one_releases() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = alone(&host, &a);
    let server = Server::leasing(&[ADDRESS], 60);
    let daemon = Daemon::start(&host);
    network.add(&a);
    daemon.end();
    let outcome = network.on("DEL", &a).run();
    outcome.ok();
    assert!(
        outcome.stderr.contains("will release the lease"),
        "{}",
        outcome.stderr
    );
    network.del(&a);
    assert!(server.seen_of(RELEASE).is_empty());
    let daemon = Daemon::start(&host);
    server.sees(|it| it.kind == RELEASE && it.from.ip().octets() == ADDRESS);
    daemon.says("released 10.6.0.50/24");
    assert!(eventually(|| records().is_empty()));
}

/// A message is longer than the smallest MTU.
#[test]
fn address_leaves_the_interface_although_it_cannot_send_a_release() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = alone(&host, &a);
    let _server = Server::leasing(&[ADDRESS], 60);
    let daemon = Daemon::start(&host);
    network.add(&a);
    a.ip("address add 10.6.0.50/24 dev eth0");
    a.ip("link set eth0 mtu 68");
    network.del(&a);
    assert!(a.addresses("eth0").is_empty(), "{}", daemon.log());
    daemon.says("released 10.6.0.50/24 from the host");
}

#[test]
fn gc_without_a_daemon_marks_the_leases_of_dead_containers() {
    let host = Host::new();
    let network = network(&host);
    let _server = Server::leasing(&[ADDRESS, [10, 6, 0, 51]], 60);
    let daemon = Daemon::start(&host);
    let (a, b) = (host.sandbox("a"), host.sandbox("b"));
    network.add(&a);
    network.add(&b);
    daemon.end();
    network.gc(&[&a]).ok();
    let daemon = Daemon::start(&host);
    daemon.says("released 10.6.0.51/24 from the host");
    assert!(eventually(|| records().len() == 1));
    assert!(!daemon.log().contains("10.6.0.50"), "{}", daemon.log());
}

/// Another program ended the daemon, or its client, during the DEL.
#[test]
fn gc_releases_what_an_unfinished_del_has_marked() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = alone(&host, &a);
    let server = Server::leasing(&[ADDRESS], 60);
    let _daemon = Daemon::start(&host);
    network.add(&a);
    let path = record_path();
    let record = fs::read(&path).unwrap();
    network.del(&a);
    let name = path.file_name().unwrap().to_str().unwrap();
    fs::write(path.with_file_name(format!("retired-{name}")), record).unwrap();
    network.gc(&[]).ok();
    assert!(records().is_empty());
    assert!(eventually(|| server.seen_of(RELEASE).len() == 2));
}

#[test]
fn daemon_that_is_killed_during_an_add_leaves_nothing_leased() {
    let host = Host::new();
    let a = host.sandbox("a");
    let network = alone(&host, &a);
    let server = Server::start(|query| match query.kind {
        DISCOVER => vec![query.lease(OFFER, ADDRESS, 60)],
        _ => Vec::new(),
    });
    let daemon = Daemon::start(&host);
    thread::scope(|scope| {
        let add = scope.spawn(|| network.on("ADD", &a).error());
        server.sees(|it| it.kind == REQUEST);
        drop(daemon);
        let refusal = add.join().unwrap();
        refusal.expect(100, &["ended during the request"]);
    });
    assert_eq!(records().len(), 1);
    let _daemon = Daemon::start(&host);
    server.sees(|it| it.kind == RELEASE && it.client.octets() == ADDRESS);
    assert!(eventually(|| records().is_empty()));
}

#[test]
fn add_that_gives_up_leaves_nothing_leased() {
    let host = Host::new();
    let network = network(&host).with("ipamTimeout", "1500ms");
    let server = Server::start(|query| match query.kind {
        DISCOVER => vec![query.lease(OFFER, ADDRESS, 60)],
        _ => Vec::new(),
    });
    let daemon = Daemon::start(&host);
    network
        .on("ADD", &host.sandbox("a"))
        .error()
        .expect(11, &["dhcp"]);
    server.sees(|it| it.kind == RELEASE && it.client.octets() == ADDRESS);
    daemon.says("released 10.6.0.50/24");
    assert!(eventually(|| records().is_empty()));
    assert_eq!(host.links(), ["cni0", "lo"]);
}

#[test]
fn lease_of_a_sandbox_that_is_gone_is_released() {
    for is_of_process in [false, true] {
        let host = Host::new();
        let network = network(&host);
        let _server = Server::leasing(&[ADDRESS], 1);
        let daemon = Daemon::start(&host);
        let a = host.sandbox("a");
        let inhabitant = is_of_process.then(|| a.inhabitant());
        let netns = inhabitant.as_ref().map(tests::Inhabitant::netns);
        let add = network.on("ADD", &a);
        match &netns {
            Some(netns) => add.netns(netns).ok(),
            None => add.ok(),
        };
        a.remove();
        drop(inhabitant);
        daemon.says("the sandbox is gone");
        assert!(eventually(|| records().is_empty()));
        network.del(&a);
    }
}

#[test]
fn lease_of_a_sandbox_that_is_out_of_sight_stays() {
    for is_link in [false, true] {
        let host = Host::new();
        let network = network(&host);
        let server = Server::leasing(&[ADDRESS], 60);
        let daemon = Daemon::start(&host);
        let a = host.sandbox("a");
        let inhabitant = a.inhabitant();
        let mut netns = inhabitant.netns();
        if is_link {
            let link = host.dir().join("netns");
            symlink(&netns, &link).unwrap();
            netns = link;
        }
        network.on("ADD", &a).netns(&netns).ok();
        drop(inhabitant);
        drop(daemon);
        // The record now claims that the renewal is due.
        let mut record = records().remove(0);
        record["lease"]["renew"] = json!({"secs": 0, "nanos": 0});
        fs::write(record_path(), record.to_string()).unwrap();
        let daemon = Daemon::start(&host);
        daemon.says("other processes may keep it");
        assert!(!daemon.log().contains("is gone"), "{}", daemon.log());
        assert_eq!(records().len(), 1, "{}", daemon.log());
        assert!(server.seen_of(RELEASE).is_empty());
    }
}

#[test]
fn two_daemons_do_not_keep_the_same_leases() {
    let host = Host::new();
    network(&host);
    let daemon = Daemon::start(&host);
    Daemon::run(&host).expect_failure(&["another DHCP daemon"]);
    daemon.signal(Signal::SIGTERM);
    assert!(eventually(|| !Path::new(SOCKET).exists()));
    let _other = UnixListener::bind(SOCKET).unwrap();
    assert!(eventually(|| Daemon::run(&host)
        .run()
        .stderr
        .contains("another program listens")));
}

#[test]
fn daemon_raises_its_limit_of_open_files() {
    let host = Host::new();
    let limited = ["prlimit", "--nofile=64:4000"].map(str::to_owned);
    let daemon = Daemon::spawn(&host, &Daemon::run(&host).under(&limited));
    daemon.says("listening");
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let mut lines = limits
        .lines()
        .map(|it| it.split_whitespace().collect::<Vec<_>>());
    let files = ["Max", "open", "files", "4000", "4000", "files"];
    assert!(lines.any(|it| it == files), "{limits}");
}

/// Runs the daemon with this word as systemd does, which passes a socket at `path`.
fn activated(host: &Host, path: &str, word: &str) -> Child {
    let listener = UnixListener::bind(path).unwrap();
    let words = "export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\" 3<&0 0</dev/null";
    let shell = ["sh", "-c", words, "sh"].map(str::to_owned);
    let mut command = host.plugin("dhcp").argument(word).under(&shell).command();
    command.stdin(OwnedFd::from(listener));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Runs what the units say, without systemd.
#[test]
fn socket_of_systemd_is_used_and_stays() {
    let host = Host::new();
    let network = network(&host).with("ipam", json!({"type": "dhcp"}));
    let _server = Server::leasing(&[ADDRESS], 60);
    let unit = |file: &str, key: &str| {
        let text = fs::read_to_string(Example::directory().join(file)).unwrap();
        let value = text.lines().find_map(|it| it.strip_prefix(key));
        value.unwrap().to_owned()
    };
    let socket = unit("systemd/cni-dhcp.socket", "ListenStream=");
    let word = unit("systemd/cni-dhcp.service", "ExecStart=/opt/cni/bin/dhcp ");
    fs::create_dir("/run/cni").unwrap();
    let mut daemon = activated(&host, &socket, &word);
    network.add(&host.sandbox("a"));
    kill(
        Pid::from_raw(daemon.id().try_into().unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    assert!(daemon.wait().unwrap().success());
    assert!(Path::new(&socket).exists());
}

/// DEL without a daemon finds the record there.
#[test]
fn records_are_beside_the_socket_of_systemd() {
    let host = Host::new();
    let a = host.sandbox("a");
    let socket = "/run/test/passed.sock";
    let network =
        alone(&host, &a).with("ipam", json!({"type": "dhcp", "daemonSocketPath": socket}));
    let _server = Server::leasing(&[ADDRESS], 60);
    let mut daemon = activated(&host, socket, "daemon");
    network.add(&a);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let outcome = network.on("DEL", &a).run();
    outcome.ok();
    let stderr = &outcome.stderr;
    assert!(stderr.contains("will release the lease"), "{stderr}");
}

#[test]
fn host_prefix_and_pid_file_are_used() {
    let host = Host::new();
    let network = network(&host);
    let _server = Server::leasing(&[ADDRESS], 60);
    symlink("/", "/run/test/host").unwrap();
    let pid_file = host.dir().join("dhcp.pid");
    let run = Daemon::run(&host)
        .argument("-hostprefix")
        .argument("/run/test/host");
    let run = run.argument(format!("-pidfile={}", pid_file.display()));
    let daemon = Daemon::spawn(&host, &run);
    daemon.says("listening on /run/test/host/run/test/dhcp.sock");
    assert_eq!(
        fs::read_to_string(&pid_file).unwrap(),
        daemon.pid().to_string()
    );
    network.add(&host.sandbox("a"));
    daemon.end();
    assert!(!pid_file.exists() && !Path::new(SOCKET).exists());
}
