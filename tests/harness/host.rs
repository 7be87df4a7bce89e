//! A host of the test's own: its network, its mounts, its /run and /var/lib.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use crate::place::Place;
use crate::{Invocation, Locker, Network, Ports, REFERENCE, Sandbox, Snapshot, Tool, eventually};

/// The network and mount namespaces of the calling thread, made for it.
///
/// Threads that it starts and commands that it runs are inside too. All of it ends with
/// the thread.
#[derive(Debug)]
pub struct Host {
    dir: PathBuf,
    _locker: Option<Locker>,
}

impl Host {
    /// Moves the calling thread into fresh namespaces in which `lo` is up, and nothing is
    /// in /run and /var/lib. With `HOLD_LOCKS` in the environment there is a [`Locker`], too.
    pub fn new() -> Self {
        if let Err(reason) = enter_namespaces() {
            panic!(
                "make namespaces: {reason}; run scripts/test.sh, or: unshare -Urnm cargo nextest run"
            );
        }
        for dir in ["/run/netns", "/run/test/plugins", "/run/test/leases"] {
            fs::create_dir_all(dir).unwrap();
        }
        let host = Self {
            dir: PathBuf::from("/run/test"),
            _locker: std::env::var_os("HOLD_LOCKS").map(|_| Locker::new()),
        };
        host.ip("link set lo up");
        host
    }

    /// A directory that ends with the test.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The `dataDir` of the networks made here.
    pub fn lease_dir(&self) -> PathBuf {
        self.dir.join("leases")
    }

    /// Another user's process that holds every lock it can open.
    pub fn locker(&self) -> Locker {
        Locker::new()
    }

    /// A namespace without any link but a `lo` that is down, as runtimes hand it over.
    pub fn sandbox(&self, name: &str) -> Sandbox {
        Sandbox::new(name)
    }

    /// Another host at the end of a cable: a veth pair of which `uplink` is here, with
    /// 192.0.2.1/24, and `outside` there, with 192.0.2.2/24.
    pub fn outside(&self) -> Sandbox {
        let outside = self.sandbox("outside");
        self.ip("link add uplink type veth peer name outside netns outside");
        // Nobody is there to have a duplicate of an address, so nobody need wait for it.
        self.set_sysctl("net/ipv6/conf/uplink/accept_dad", "0");
        outside.set_sysctl("net/ipv6/conf/outside/accept_dad", "0");
        self.ip("address add 192.0.2.1/24 dev uplink");
        self.ip("link set uplink up");
        outside.ip("link set lo up");
        outside.ip("address add 192.0.2.2/24 dev outside");
        outside.ip("link set outside up");
        outside
    }

    /// As [`Self::outside`], with `2001:db8::1/64` and `2001:db8::2/64` as well.
    pub fn outside_of_both_families(&self) -> Sandbox {
        let outside = self.outside();
        self.ip("address add 2001:db8::1/64 dev uplink nodad");
        outside.ip("address add 2001:db8::2/64 dev outside nodad");
        outside
    }

    /// An executable under test.
    pub fn plugin(&self, name: &str) -> Invocation {
        Invocation::new(self, &under_test(name))
    }

    /// Any executable.
    pub fn program(&self, path: &Path) -> Invocation {
        Invocation::new(self, path)
    }

    /// The reference's executable of that name.
    pub fn reference(&self, name: &str) -> Invocation {
        let program = Path::new(REFERENCE).join(name);
        assert!(
            program.exists(),
            "{} is missing: apt-get install containernetworking-plugins",
            program.display()
        );
        Invocation::new(self, &program)
    }

    /// `CNI_PATH`: the test's own scripts, the executables under test, the reference's.
    pub fn search_path(&self) -> String {
        let under_test = under_test("host-local");
        let beside = under_test.parent().unwrap().display();
        format!("{}/plugins:{beside}:{REFERENCE}", self.dir.display())
    }

    /// Puts a shell script into `CNI_PATH`, before anything else.
    pub fn script(&self, name: &str, body: &str) {
        let path = self.dir.join("plugins").join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The network `pods`: a bridge that is the gateway, both families, host-local.
    pub fn bridge(&self) -> Network<'_> {
        let config = json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "ipam": self.ipam(&json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]])),
        });
        Network::new(self, config)
    }

    /// As [`Self::bridge`], with portmap behind it.
    pub fn ports(&self) -> Ports<'_> {
        Ports::new(self)
    }

    /// cnitool, without any network yet.
    pub fn tool(&self) -> Tool<'_> {
        Tool::new(self)
    }

    /// cnitool with the network `pods`, as [`Tool::configure_all`] has it, on cni1.
    pub fn pods(&self) -> Tool<'_> {
        let tool = self.tool();
        tool.configure_all("pods", 1);
        tool
    }

    /// As [`Self::bridge`], IPv4 alone.
    pub fn bridge_v4(&self) -> Network<'_> {
        let ipam = self.ipam(&json!([[{"subnet": "10.1.0.0/24"}]]));
        self.bridge().with("ipam", ipam)
    }

    /// The network `pods` of host-local alone, IPv4.
    pub fn host_local(&self) -> Network<'_> {
        let config = json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "type": "host-local",
            "ipam": self.ipam(&json!([[{"subnet": "10.1.0.0/24"}]])),
        });
        Network::new(self, config)
    }

    /// The limits of the network `pods`; keys and `prevResult` are to be set.
    pub fn bandwidth(&self) -> Network<'_> {
        let config = json!({"cniVersion": "1.0.0", "name": "pods", "type": "bandwidth"});
        Network::new(self, config)
    }

    /// A loopback network as containerd asks for it.
    pub fn loopback(&self) -> Network<'_> {
        let config = json!({"cniVersion": "1.0.0", "name": "lo-net", "type": "loopback"});
        Network::new(self, config)
    }

    fn ipam(&self, ranges: &Value) -> Value {
        json!({"type": "host-local", "ranges": ranges, "dataDir": self.lease_dir()})
    }

    /// The leases of `network`: address to content.
    pub fn leases(&self, network: &str) -> BTreeMap<String, String> {
        leases_in(&self.lease_dir().join(network))
    }

    /// The command lines of the processes in this network, but for the test's own.
    pub fn processes(&self) -> Vec<String> {
        let own = fs::read_link("/proc/thread-self/ns/net").unwrap();
        let test = std::process::id();
        let numbers = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let number = entry.unwrap().file_name().to_str()?.parse::<u32>().ok()?;
            Some(number).filter(|number| *number != test)
        });
        let processes = numbers.map(|number| Path::new("/proc").join(number.to_string()));
        let ours =
            processes.filter(|it| fs::read_link(it.join("ns/net")).is_ok_and(|it| it == own));
        let lines = ours.filter_map(|it| fs::read_to_string(it.join("cmdline")).ok());
        let words = lines.map(|it| it.trim_end_matches('\0').replace('\0', " "));
        words.filter(|it| !it.is_empty()).collect()
    }

    /// Those of them that a plugin left behind for its own work.
    pub fn left_over(&self) -> Vec<String> {
        let mut processes = self.processes();
        processes.retain(|it| it.contains("--left-over"));
        processes
    }

    /// Makes what is below `dir` unchangeable, for root too.
    pub fn read_only(&self, dir: impl AsRef<Path>) {
        let (dir, nothing) = (dir.as_ref(), None::<&str>);
        let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(dir), dir, nothing, bind, nothing).unwrap();
        let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(nothing, dir, nothing, read_only, nothing).unwrap();
    }

    /// The namespace of a pod ends, and with it what is here of its pair, for which the kernel needs longer than
    /// plugins wait where it is busy.
    pub fn end(&self, pod: &Sandbox) {
        let before = self.links().len();
        pod.remove();
        assert!(eventually(|| self.links().len() < before));
    }

    /// Whether netfilter sees bridged frames from now on. Where `br_netfilter` is not loaded it cannot, and what
    /// takes it cannot be shown: then this is false.
    #[must_use]
    pub fn show_bridged_frames(&self, shall: bool) -> bool {
        let keys = ["iptables", "ip6tables"].map(|it| format!("net/bridge/bridge-nf-call-{it}"));
        let is_loaded = keys.iter().all(|key| self.sysctl(key).is_some());
        if !is_loaded {
            eprintln!("br_netfilter is not loaded: what takes it is not shown");
        }
        if is_loaded {
            for key in keys {
                self.set_sysctl(&key, if shall { "1" } else { "0" });
            }
        }
        is_loaded && shall
    }

    /// Hides what is below `dir` behind an empty directory.
    pub fn hide(&self, dir: impl AsRef<Path>) {
        self.tmpfs(dir, "");
    }

    /// Puts an empty file system on `dir`, made with `options`: `size=64k`.
    pub fn tmpfs(&self, dir: impl AsRef<Path>, options: &str) {
        let (none, tmpfs) = (MsFlags::empty(), Some("tmpfs"));
        mount(tmpfs, dir.as_ref(), tmpfs, none, Some(options)).unwrap();
    }

    /// From now on the machine was started anew, as far as its boot ID tells.
    pub fn reboot(&self, boot_id: &str) {
        let file = self.dir.join(format!("boot-{boot_id}"));
        fs::write(&file, format!("{boot_id}\n")).unwrap();
        let (known_by, nothing) = ("/proc/sys/kernel/random/boot_id", None::<&str>);
        mount(Some(&file), known_by, nothing, MsFlags::MS_BIND, nothing).unwrap();
    }

    /// Everything that an attachment may have left behind.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(self)
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Place for Host {
    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        work()
    }
}

/// The files of a directory that are named after an address, with their contents.
pub(crate) fn leases_in(dir: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return BTreeMap::new();
    };
    let files = entries.map(|entry| entry.unwrap());
    let leases = files.filter_map(|file| {
        let name = file.file_name().into_string().unwrap();
        name.parse::<IpAddr>().ok()?;
        Some((name, fs::read_to_string(file.path()).unwrap()))
    });
    leases.collect()
}

fn enter_namespaces() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
    let nothing = None::<&str>;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(nothing, "/", nothing, private, nothing)?;
    for dir in ["/run", "/var/lib"] {
        mount(
            Some("tmpfs"),
            dir,
            Some("tmpfs"),
            MsFlags::empty(),
            Some("mode=755"),
        )?;
    }
    // The one that was there shows another network's links.
    mount(
        Some("sysfs"),
        "/sys",
        Some("sysfs"),
        MsFlags::empty(),
        nothing,
    )
}

/// In `PLUGINS_UNDER_TEST` if it is there, else beside the tests.
fn under_test(name: &str) -> PathBuf {
    if let Some(dir) = std::env::var_os("PLUGINS_UNDER_TEST") {
        let program = fs::canonicalize(dir).unwrap().join(name);
        if program.exists() {
            return program;
        }
    }
    // target/debug/deps/<test>
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join(name);
    assert!(
        program.exists(),
        "{} is missing: run scripts/test.sh, or first: cargo build --workspace --bins",
        program.display()
    );
    program
}
