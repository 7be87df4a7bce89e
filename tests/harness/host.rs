//! A test's own host: its network, its mounts, its /run and /var/lib.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};

use crate::fence::Fence;
use crate::namespaces::enter_namespaces;
use crate::place::Place;
use crate::{Invocation, Locker, Network, Ports, REFERENCE, Sandbox, Snapshot, Tool, eventually};

/// Network and mount namespaces of the calling thread.
///
/// The thread's own threads and commands are inside, too. The namespaces end with the thread.
#[derive(Debug)]
pub struct Host {
    dir: PathBuf,
    _locker: Option<Locker>,
}

impl Host {
    /// Moves the calling thread into new namespaces with `lo` up and empty /run and /var/lib.
    /// Starts a [`Locker`] if `HOLD_LOCKS` is set.
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

    /// Returns a directory that disappears with the test.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the `dataDir` of this host's networks.
    pub fn lease_dir(&self) -> PathBuf {
        self.dir.join("leases")
    }

    /// Starts another user's process that holds every lock it can open.
    pub fn locker(&self) -> Locker {
        Locker::new()
    }

    /// Creates a namespace with only a `lo` that is down, as runtimes do.
    pub fn sandbox(&self, name: &str) -> Sandbox {
        Sandbox::new(name)
    }

    /// Creates another host, connected by a veth pair: `uplink` here with 192.0.2.1/24, and
    /// `outside` there with 192.0.2.2/24.
    pub fn outside(&self) -> Sandbox {
        let outside = self.sandbox("outside");
        self.ip("link add uplink type veth peer name outside netns outside");
        // No other host can have a duplicate address, so detection would only delay.
        self.set_sysctl("net/ipv6/conf/uplink/accept_dad", "0");
        outside.set_sysctl("net/ipv6/conf/outside/accept_dad", "0");
        self.ip("address add 192.0.2.1/24 dev uplink");
        self.ip("link set uplink up");
        outside.ip("link set lo up");
        outside.ip("address add 192.0.2.2/24 dev outside");
        outside.ip("link set outside up");
        outside
    }

    /// Creates [`Self::outside`] with the addresses `2001:db8::1/64` and `2001:db8::2/64`, too.
    pub fn outside_of_both_families(&self) -> Sandbox {
        let outside = self.outside();
        self.ip("address add 2001:db8::1/64 dev uplink nodad");
        outside.ip("address add 2001:db8::2/64 dev outside nodad");
        outside
    }

    /// Returns a run of an executable under test.
    pub fn plugin(&self, name: &str) -> Invocation {
        Invocation::new(self, &under_test(name))
    }

    /// Returns a run of any executable.
    pub fn program(&self, path: &Path) -> Invocation {
        Invocation::new(self, path)
    }

    /// Returns a run of the reference's executable.
    pub fn reference(&self, name: &str) -> Invocation {
        let program = Path::new(REFERENCE).join(name);
        assert!(
            program.exists(),
            "{} is missing: apt-get install containernetworking-plugins",
            program.display()
        );
        Invocation::new(self, &program)
    }

    /// Returns `CNI_PATH`: the test's scripts, the executables under test, the reference's.
    pub fn search_path(&self) -> String {
        let under_test = under_test("host-local");
        let beside = under_test.parent().unwrap().display();
        format!("{}/plugins:{beside}:{REFERENCE}", self.dir.display())
    }

    /// Adds a shell script to `CNI_PATH`, ahead of all executables.
    pub fn script(&self, name: &str, body: &str) {
        let path = self.dir.join("plugins").join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Returns the network `pods`: a bridge as gateway, both families, host-local.
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

    /// Returns the network `pods` of `ptp`: both families and their default routes, host-local.
    pub fn ptp(&self) -> Network<'_> {
        let config = json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "type": "ptp",
            "ipam": self.ipam(&json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]])),
        });
        let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
        Network::new(self, config).with("ipam.routes", routes)
    }

    /// Returns the network `pods` of a plugin whose link lives in the sandbox alone: both families,
    /// host-local.
    pub fn single(&self, plugin: &str) -> Network<'_> {
        let config = json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "type": plugin,
            "ipam": self.ipam(&json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]])),
        });
        Network::new(self, config)
    }

    /// Returns whether the kernel has this kind of link.
    pub fn has_kind(&self, kind: &str) -> bool {
        let tried = format!("ip link add trial link lo type {kind}; ip link del trial");
        !self
            .sh(&format!("({tried}) 2>&1 || true"))
            .contains("Unknown device type")
    }

    /// Returns the network `pods` of `macvlan` on a card whose network has 10.1.0.1, an address of
    /// this host. IPv4 alone, because the detection of duplicate IPv6 addresses takes a second.
    pub fn card(&self) -> Network<'_> {
        if !self.has_link("card") {
            self.ip("link add card type veth peer name gate");
            self.ip("address add 10.1.0.1/24 dev gate");
            self.sh("ip link set card up; ip link set gate up");
        }
        let network = self.single("macvlan").with("master", "card");
        network.with("ipam.ranges", json!([[{"subnet": "10.1.0.0/24"}]]))
    }

    /// Returns [`Self::bridge`] with portmap behind it.
    pub fn ports(&self) -> Ports<'_> {
        Ports::new(self)
    }

    /// Returns a bridge with portmap and firewall behind it, and another host.
    pub fn fence(&self) -> Fence<'_> {
        Fence::new(self)
    }

    /// Returns cnitool without networks.
    pub fn tool(&self) -> Tool<'_> {
        Tool::new(self)
    }

    /// Returns cnitool with the network `pods` of [`Tool::configure_all`] on cni1.
    pub fn pods(&self) -> Tool<'_> {
        let tool = self.tool();
        tool.configure_all("pods", 1);
        tool
    }

    /// Returns [`Self::bridge`] with IPv4 only.
    pub fn bridge_v4(&self) -> Network<'_> {
        let ipam = self.ipam(&json!([[{"subnet": "10.1.0.0/24"}]]));
        self.bridge().with("ipam", ipam)
    }

    /// Returns the network `pods` of host-local only, with IPv4.
    pub fn host_local(&self) -> Network<'_> {
        let config = json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "type": "host-local",
            "ipam": self.ipam(&json!([[{"subnet": "10.1.0.0/24"}]])),
        });
        Network::new(self, config)
    }

    /// Returns [`Self::host_local`] with only this range.
    pub fn host_local_in(&self, range: &Value) -> Network<'_> {
        self.host_local().with("ipam.ranges", json!([[range]]))
    }

    /// Returns the network `pods` of static only, with an address of each family.
    pub fn fixed(&self) -> Network<'_> {
        let addresses = json!([
            {"address": "10.1.0.2/24", "gateway": "10.1.0.1"},
            {"address": "fd00:1::2/64", "gateway": "fd00:1::1"},
        ]);
        let config = json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "type": "static",
            "ipam": {"type": "static", "addresses": addresses},
        });
        Network::new(self, config)
    }

    /// Returns the bandwidth network `pods`; the caller sets keys and `prevResult`.
    pub fn bandwidth(&self) -> Network<'_> {
        let config = json!({"cniVersion": "1.0.0", "name": "pods", "type": "bandwidth"});
        Network::new(self, config)
    }

    /// Returns the tuning network `pods` with a value for every key but `mac`, which `macspoofchk`
    /// of the bridge refuses; the caller sets `prevResult`.
    pub fn tuning(&self) -> Network<'_> {
        let config = json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "type": "tuning",
            "sysctl": {"net.core.somaxconn": "512", "net.ipv4.conf.IFNAME.arp_filter": "1"},
            "promisc": true,
            "mtu": 1400,
            "allmulti": true,
            "txQLen": 500,
        });
        Network::new(self, config)
    }

    /// Returns a loopback network like containerd's.
    pub fn loopback(&self) -> Network<'_> {
        let config = json!({"cniVersion": "1.0.0", "name": "lo-net", "type": "loopback"});
        Network::new(self, config)
    }

    fn ipam(&self, ranges: &Value) -> Value {
        json!({"type": "host-local", "ranges": ranges, "dataDir": self.lease_dir()})
    }

    /// Returns the leases of `network`: content by address.
    pub fn leases(&self, network: &str) -> BTreeMap<String, String> {
        leases_in(&self.lease_dir().join(network))
    }

    /// Returns the command lines of the processes in this network, except for the test itself.
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

    /// Returns the processes that a plugin left behind: with a task, or a copy without arguments.
    pub fn left_over(&self) -> Vec<String> {
        let is_copy = |line: &str| !line.ends_with("cni-agent") && Path::new(line).is_file();
        let is_left = |line: &String| line.contains("--left-over") || is_copy(line);
        self.processes().into_iter().filter(is_left).collect()
    }

    /// Makes `dir` read-only, even for root.
    pub fn read_only(&self, dir: impl AsRef<Path>) {
        let (dir, nothing) = (dir.as_ref(), None::<&str>);
        let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(dir), dir, nothing, bind, nothing).unwrap();
        let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(nothing, dir, nothing, read_only, nothing).unwrap();
    }

    /// Ends a sandbox and waits for the end of its pair: a busy kernel needs longer than plugins
    /// wait.
    pub fn end(&self, pod: &Sandbox) {
        let before = self.links().len();
        pod.remove();
        assert!(eventually(|| self.links().len() < before));
    }

    /// Sets whether netfilter sees bridged frames, and returns it. Returns false if `br_netfilter`
    /// is not loaded, since the test cannot show its effects then.
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

    /// Hides `dir` behind an empty directory.
    pub fn hide(&self, dir: impl AsRef<Path>) {
        self.tmpfs(dir, "");
    }

    /// Mounts an empty file system with `options` on `dir`: `size=64k`.
    pub fn tmpfs(&self, dir: impl AsRef<Path>, options: &str) {
        let (none, tmpfs) = (MsFlags::empty(), Some("tmpfs"));
        mount(tmpfs, dir.as_ref(), tmpfs, none, Some(options)).unwrap();
    }

    /// Records everything that an attachment may leave behind.
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

/// Returns the files of a directory that are named after an address, with their contents. Leaves out
/// a file that a plugin deletes meanwhile.
pub(crate) fn leases_in(dir: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return BTreeMap::new();
    };
    let files = entries.map(|entry| entry.unwrap());
    let leases = files.filter_map(|file| {
        let name = file.file_name().into_string().unwrap();
        name.parse::<IpAddr>().ok()?;
        match fs::read_to_string(file.path()) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            content => Some((name, content.unwrap())),
        }
    });
    leases.collect()
}

/// Returns the executable in `PLUGINS_UNDER_TEST`, or else beside the tests.
pub(crate) fn under_test(name: &str) -> PathBuf {
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
