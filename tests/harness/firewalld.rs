//! firewalld, the real one, on a D-Bus of the test's own.

use std::fs;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{Host, Invocation, Place as _, eventually};

/// firewalld and its bus. Its default zone forwards nothing.
#[derive(Debug)]
pub struct Firewalld<'h> {
    host: &'h Host,
    bus: Child,
    daemon: Child,
}

impl<'h> Firewalld<'h> {
    /// Starts the bus and firewalld, and waits until firewalld runs.
    pub fn start(host: &'h Host) -> Self {
        Self::start_in_zone(host, Some("<zone/>"))
    }

    /// Starts both with the zones that firewalld's package installs.
    pub fn start_with_defaults(host: &'h Host) -> Self {
        Self::start_in_zone(host, None)
    }

    /// Starts both with `public` as the default zone; `None` leaves the one of the package.
    fn start_in_zone(host: &'h Host, public: Option<&str>) -> Self {
        for directory in ["/etc/firewalld", "/var/log"] {
            host.run("mount", &["-t", "tmpfs", "tmpfs", directory]);
        }
        for directory in ["/etc/firewalld/zones", "/run/dbus", "/run/firewalld"] {
            fs::create_dir_all(directory).unwrap();
        }
        if let Some(public) = public {
            fs::write("/etc/firewalld/zones/public.xml", public).unwrap();
        }
        fs::write("/run/dbus/bus.conf", BUS).unwrap();
        let firewalld = Self {
            bus: bus(host),
            daemon: daemon(host),
            host,
        };
        firewalld.wait();
        firewalld
    }

    /// Ends firewalld as systemd does, and starts it again.
    pub fn restart(&mut self) {
        self.signal(Signal::SIGTERM);
        self.daemon.wait().unwrap();
        self.daemon = daemon(self.host);
        self.wait();
    }

    /// Ends the bus, and firewalld with it, and starts both again.
    pub fn restart_with_the_bus(&mut self) {
        self.end();
        fs::remove_file(SOCKET).unwrap();
        self.bus = bus(self.host);
        self.daemon = daemon(self.host);
        self.wait();
    }

    /// Sends a signal to firewalld.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.daemon.id().cast_signed()), signal).unwrap();
    }

    /// Sends a signal to the bus.
    pub fn signal_bus(&self, signal: Signal) {
        kill(Pid::from_raw(self.bus.id().cast_signed()), signal).unwrap();
    }

    /// Runs firewall-cmd and returns its output.
    pub fn command(&self, words: &str) -> String {
        let line = format!("DBUS_SYSTEM_BUS_ADDRESS={ADDRESS} firewall-cmd {words}");
        self.host.sh(&line).trim().to_owned()
    }

    /// Returns the sources of a zone, separated by spaces.
    pub fn sources(&self, zone: &str) -> String {
        self.command(&format!("--zone={zone} --list-sources"))
    }

    fn wait(&self) {
        // It starts slowly on a busy machine.
        let is_up = (0..6).any(|_| eventually(|| self.command("--state || true") == "running"));
        assert!(is_up, "{}", log());
    }

    fn end(&mut self) {
        for process in [&mut self.daemon, &mut self.bus] {
            process.kill().ok();
            process.wait().ok();
        }
    }
}

impl Drop for Firewalld<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

impl Invocation {
    /// Lets the run find the test's bus.
    pub fn on_the_bus(self) -> Self {
        self.env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS)
    }
}

fn bus(host: &Host) -> Child {
    let words = ["--nofork", "--config-file=/run/dbus/bus.conf"];
    let bus = run(host, "dbus-daemon", &words);
    assert!(eventually(|| fs::exists(SOCKET).unwrap()), "{}", log());
    bus
}

fn daemon(host: &Host) -> Child {
    run(host, "firewalld", &["--nofork", "--nopid"])
}

fn run(host: &Host, program: &str, words: &[&str]) -> Child {
    let log = fs::File::create(format!("/run/{program}.log")).unwrap();
    host.enter(|| {
        let mut command = Command::new(program);
        command.args(words).env("DBUS_SYSTEM_BUS_ADDRESS", ADDRESS);
        command.stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(log);
        let child = command.spawn();
        child.unwrap_or_else(|error| panic!("{program}: {error}; install firewalld"))
    })
}

fn log() -> String {
    let logs = ["dbus-daemon", "firewalld"].map(|it| fs::read_to_string(format!("/run/{it}.log")));
    format!("{logs:?}")
}

const SOCKET: &str = "/run/dbus/socket";
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
