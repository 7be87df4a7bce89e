//! firewall: traffic of pods passes firewalld, the real one on a D-Bus of the test's own.

use std::fs;
use std::process::{Child, Command, Stdio};

use tests::fence::Fence;
use tests::traffic::{tcp, tcp_by_port};
use tests::{Host, Network, Place as _, Sandbox, eventually};

/// firewalld with a default zone that forwards nothing, and its bus.
struct Firewalld {
    processes: Vec<Child>,
}

impl Firewalld {
    fn start(host: &Host) -> Self {
        for directory in ["/etc/firewalld", "/var/log"] {
            host.run("mount", &["-t", "tmpfs", "tmpfs", directory]);
        }
        for directory in ["/etc/firewalld/zones", "/run/dbus", "/run/firewalld"] {
            fs::create_dir_all(directory).unwrap();
        }
        fs::write("/etc/firewalld/zones/public.xml", "<zone/>").unwrap();
        fs::write("/run/dbus/bus.conf", BUS).unwrap();
        let mut firewalld = Self {
            processes: Vec::new(),
        };
        firewalld.run(
            host,
            "dbus-daemon",
            &["--nofork", "--config-file=/run/dbus/bus.conf"],
        );
        assert!(eventually(|| fs::exists("/run/dbus/socket").unwrap()));
        firewalld.run(host, "firewalld", &["--nofork", "--nopid"]);
        // It starts slowly on a busy machine.
        let is_up = (0..6).any(|_| eventually(|| is_running(host)));
        assert!(is_up, "{}", log());
        firewalld
    }

    fn run(&mut self, host: &Host, program: &str, words: &[&str]) {
        let log = fs::File::create(format!("/run/{program}.log")).unwrap();
        let spawn = || {
            let mut command = Command::new(program);
            command.args(words).env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log);
            command
                .spawn()
                .unwrap_or_else(|error| panic!("{program}: {error}; install firewalld"))
        };
        self.processes.push(host.enter(spawn));
    }
}

impl Drop for Firewalld {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            process.kill().ok();
            process.wait().ok();
        }
    }
}

fn log() -> String {
    let logs = ["dbus-daemon", "firewalld"].map(|it| fs::read_to_string(format!("/run/{it}.log")));
    format!("{logs:?}")
}

fn is_running(host: &Host) -> bool {
    let state = format!("DBUS_SYSTEM_BUS_ADDRESS={ADDRESS} firewall-cmd --state || true");
    host.run("sh", &["-c", &state]).trim() == "running"
}

fn command(host: &Host, words: &str) -> String {
    let line = format!("DBUS_SYSTEM_BUS_ADDRESS={ADDRESS} firewall-cmd {words}");
    host.run("sh", &["-ec", &line]).trim().to_owned()
}

fn sources(host: &Host, zone: &str) -> String {
    command(host, &format!("--zone={zone} --list-sources"))
}

const ADDRESS: &str = "unix:path=/run/dbus/socket";

const BUS: &str = r#"<busconfig>
<type>system</type>
<listen>unix:path=/run/dbus/socket</listen>
<auth>EXTERNAL</auth>
<policy context="default">
<allow user="*"/> <allow own="*"/> <allow send_destination="*"/> <allow receive_type="signal"/>
<allow receive_type="method_return"/> <allow receive_type="error"/> <allow receive_type="method_call"/>
</policy>
</busconfig>"#;

/// Returns firewall behind the bridge for a sandbox, by the test's bus.
fn join<'h>(fence: &Fence<'h>, pod: &Sandbox) -> Network<'h> {
    fence.join(pod, &["8080:80"])
}

fn run(network: &Network<'_>, verb: &str, pod: &Sandbox) -> tests::Invocation {
    network
        .on(verb, pod)
        .env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS)
}

#[test]
fn pods_open_connections_as_sources_of_a_zone() {
    for backend in ["", "firewalld"] {
        let host = Host::new();
        let _firewalld = Firewalld::start(&host);
        let fence = host.fence();
        let a = host.sandbox("a");
        let firewall = join(&fence, &a).with("backend", backend);
        assert_eq!(fence.opens(&a), [false; 2]);
        assert_eq!(
            run(&firewall, "ADD", &a).ok(),
            firewall.config()["prevResult"]
        );
        assert_eq!(fence.opens(&a), [true; 2]);
        assert!(!fence.is_opened(&a, "10.1.0.2"));
        assert!(tcp_by_port(&fence.outside, "192.0.2.1:8080", (&a, 80)).is_some());
        assert_eq!(sources(&host, "trusted").split(' ').count(), 2);
        run(&firewall, "CHECK", &a).ok();
        // firewalld forgets sources of its runtime.
        command(&host, "--reload");
        assert_eq!(sources(&host, "trusted"), "");
        let missing = ["zone trusted of firewalld lacks 10.1.0."];
        run(&firewall, "CHECK", &a).error().expect(100, &missing);
        run(&firewall, "RELOAD", &a).ok();
        run(&firewall, "CHECK", &a).ok();
        assert_eq!(fence.opens(&a), [true; 2]);
        let forgotten = fence.firewall().on("DEL", &a).without("CNI_NETNS");
        forgotten.env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS).ok();
        assert_eq!(sources(&host, "trusted"), "");
        assert_eq!(fence.opens(&a), [false; 2]);
    }
}

/// The copy of the rules has no firewalld that would add a new pod to a zone.
#[test]
fn doctor_reports_what_firewalld_drops_and_who_covers_it() {
    let host = Host::new();
    let _firewalld = Firewalld::start(&host);
    let outside = host.outside();
    let a = host.sandbox("a");
    let tool = host.tool();
    let doctor = || tool.doctor();
    let with_bus = |verb: &str| {
        let run = tool.on(verb, "pods", &a);
        run.env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS).ok()
    };
    let bridge = host.bridge_v4().with("isDefaultGateway", true);
    let bridge = bridge.with("ipMasq", true).config().clone();
    let firewall = serde_json::json!({"type": "firewall"});
    tool.configure("pods", std::slice::from_ref(&bridge));
    let place = "in table inet firewalld, chain filter_FWD_public";
    let words = [place, "adds each new pod to firewalld's zone"];
    doctor().expect("problem", "firewall", &words);
    for fix in doctor().fixes("firewall") {
        command(&host, fix.strip_prefix("firewall-cmd ").unwrap());
    }
    doctor().expect("ok", "firewall", &["new packets of pods on cni0 pass"]);
    command(&host, "--reload");
    tool.configure("pods", &[bridge, firewall]);
    let words = [place, "which a copy of the rules cannot show"];
    doctor().expect("warning", "firewall", &words);
    with_bus("add");
    assert!(tcp(&a, &outside, "192.0.2.2").is_some());
    doctor().expect("ok", "firewall", &["new packets of pods on cni0 pass"]);
    command(&host, "--reload");
    assert!(tcp(&a, &outside, "192.0.2.2").is_none());
    let words = [place, "reload of firewalld", "cnitool reload"];
    doctor().expect("problem", "firewall", &words);
    let reload = tool
        .run(&["reload"])
        .env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS);
    reload.ok();
    doctor().expect("ok", "firewall", &["new packets of pods on cni0 pass"]);
}

#[test]
fn zones_are_chosen_and_shared_and_collected() {
    let host = Host::new();
    let _firewalld = Firewalld::start(&host);
    let fence = host.fence();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    let first = join(&fence, &a).with("firewalldZone", "internal");
    run(&first, "ADD", &a).ok();
    assert!(sources(&host, "internal").contains("10.1.0.2/32"));
    // Another attachment of the same address.
    run(&first, "ADD", &b).ok();
    run(&first, "DEL", &a).ok();
    assert!(sources(&host, "internal").contains("10.1.0.2/32"));
    run(&first, "CHECK", &b).ok();
    let gc = fence
        .firewall()
        .gc(&[])
        .env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS);
    gc.ok();
    assert_eq!(sources(&host, "internal"), "");
    // What the Go plugin added, without a record.
    command(&host, "--zone=internal --add-source=10.1.0.2/32");
    run(&first, "DEL", &a).ok();
    assert_eq!(sources(&host, "internal"), "");
    let unknown = first.with("firewalldZone", "nowhere");
    let refused = run(&unknown, "ADD", &a).error();
    refused.expect(100, &["firewalld", "INVALID_ZONE", "nowhere"]);
    let left = host.run("nft", &["list", "table", "inet", "cni-firewall"]);
    assert!(!left.contains("cni:pods"), "{left}");
}

#[test]
fn firewalld_that_does_not_run_is_an_error_only_if_it_is_asked_for() {
    let host = Host::new();
    let fence = host.fence();
    let a = host.sandbox("a");
    let firewall = join(&fence, &a);
    let asking = firewall.clone().with("backend", "firewalld");
    run(&asking, "ADD", &a)
        .error()
        .expect(100, &["D-Bus", "firewalld"]);
    let status = asking.clone().with("cniVersion", "1.1.0").call("STATUS");
    status.error().expect(50, &["firewalld"]);
    run(&asking, "DEL", &a).ok();
    run(&firewall, "ADD", &a).ok();
    let firewalld = Firewalld::start(&host);
    run(&firewall, "CHECK", &a)
        .error()
        .expect(100, &["firewalld lacks"]);
    run(&firewall, "RELOAD", &a).ok();
    assert_eq!(fence.opens(&a), [true; 2]);
    run(&firewall, "DEL", &a).ok();
    assert_eq!(sources(&host, "trusted"), "");
    run(&firewall, "ADD", &a).ok();
    drop(firewalld);
    run(&firewall, "DEL", &a).ok();
}
