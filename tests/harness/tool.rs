//! cnitool, as an administrator runs it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::commands::expect_tested;
use crate::open_metrics::Metrics;
use crate::place::Place as _;
use crate::ports::mapping;
use crate::{Host, Invocation, Outcome, Sandbox};

/// cnitool with a directory of networks and the host's cache.
#[derive(Debug)]
pub struct Tool<'h> {
    host: &'h Host,
    executables: Option<PathBuf>,
}

impl<'h> Tool<'h> {
    pub(crate) fn new(host: &'h Host) -> Self {
        fs::create_dir_all(host.dir().join("net.d")).unwrap();
        Self {
            host,
            executables: None,
        }
    }

    /// Returns cnitool of this directory, which calls the plugins there. The networks and the cache
    /// are the same.
    pub fn by(&self, directory: &Path) -> Self {
        Self {
            host: self.host,
            executables: Some(directory.to_owned()),
        }
    }

    /// Configures a network of this name with these plugins.
    pub fn configure(&self, name: &str, plugins: &[Value]) {
        let mut plugins = plugins.to_vec();
        for plugin in &mut plugins {
            let plugin = plugin.as_object_mut().unwrap();
            plugin.retain(|key, _| key != "name" && key != "cniVersion");
        }
        let list = json!({"cniVersion": "1.1.0", "name": name, "plugins": plugins});
        self.install(name, &list.to_string());
    }

    /// Configures a network of this name by the text of a list.
    pub fn install(&self, name: &str, list: &str) {
        let file = self.host.dir().join("net.d").join(name);
        fs::write(file.with_extension("conflist"), list).unwrap();
    }

    /// Configures a network with everything that an attachment can have in a firewall. It uses the
    /// bridge `cni<number>`, `10.<number>.0.0/24` and `fd00:<number>::/64`.
    pub fn configure_all(&self, name: &str, number: u8) {
        let ranges = json!([
            [{"subnet": format!("10.{number}.0.0/24")}],
            [{"subnet": format!("fd00:{number}::/64")}],
        ]);
        let bridge = self
            .host
            .bridge()
            .with("bridge", format!("cni{number}"))
            .with("isDefaultGateway", true)
            .with("ipMasq", true)
            .with("macspoofchk", true)
            .with("ipam.ranges", ranges);
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        self.configure(name, &[bridge.config().clone(), portmap]);
    }

    /// Returns a run with these words.
    pub fn run(&self, words: &[&str]) -> Invocation {
        let networks = self.host.dir().join("net.d");
        let tool = match &self.executables {
            None => self.host.plugin("cnitool"),
            Some(directory) => {
                let tool = self.host.program(&directory.join("cnitool"));
                tool.env("CNI_PATH", directory)
            }
        };
        let tool = tool.env("NETCONFPATH", networks);
        words.iter().fold(tool, Invocation::argument)
    }

    /// Runs it with these words, which must succeed, and returns the lines of its output.
    #[track_caller]
    pub fn lines(&self, words: &[&str]) -> Vec<String> {
        let outcome = self.run(words).run();
        assert!(outcome.status.success(), "{outcome:#?}");
        outcome.stdout.lines().map(str::to_owned).collect()
    }

    /// Returns a run for the sandbox's eth0.
    pub fn on(&self, verb: &str, network: &str, sandbox: &Sandbox) -> Invocation {
        self.run(&[verb, network, sandbox.path().to_str().unwrap()])
    }

    /// Runs ADD with these host ports, in the form of [`crate::Ports::attach`].
    #[track_caller]
    pub fn add(&self, network: &str, sandbox: &Sandbox, ports: &[&str]) -> Value {
        let ports: Vec<_> = ports.iter().map(|text| mapping(text)).collect();
        let ports = json!({"portMappings": ports}).to_string();
        self.on("add", network, sandbox).env("CAP_ARGS", ports).ok()
    }

    /// Writes a file into the directory of networks.
    pub fn write(&self, file: &str, text: &str) {
        fs::write(self.host.dir().join("net.d").join(file), text).unwrap();
    }

    /// Returns the findings of `doctor`.
    #[track_caller]
    pub fn doctor(&self) -> Findings {
        Findings::of(&self.run(&["doctor", "--json"]).run())
    }

    /// Runs the commands that `doctor` suggests for this subject; afterwards it must report
    /// nothing.
    #[track_caller]
    pub fn fix(&self, subject: &str) {
        let findings = self.doctor();
        let commands = findings.fixes(subject);
        assert!(!commands.is_empty(), "{findings:#?}");
        for command in commands {
            self.obey(&command);
        }
        let findings = self.doctor();
        assert_eq!(findings.status, 0, "{findings:#?}");
    }

    /// Runs a command that `doctor` prints, like [`Self::in_shell`]. It must take no address from a
    /// sandbox, nor from the host if there is an attached sandbox.
    #[track_caller]
    pub fn obey(&self, command: &str) {
        expect_tested(command);
        let before = self.addresses();
        self.in_shell(command);
        let after = self.addresses();
        let lost: Vec<_> = before.difference(&after).collect();
        assert!(lost.is_empty(), "{command} took {lost:?}");
    }

    /// Runs a command that a message prints, as its operator would: scripts and executables of the
    /// test's `CNI_PATH` can be called by name.
    #[track_caller]
    pub fn in_shell(&self, command: &str) {
        let shell = self.host.program(Path::new("/bin/sh"));
        let shell = shell.env("NETCONFPATH", self.host.dir().join("net.d"));
        let scripts = self.host.dir().join("plugins");
        let (programs, path) = (self.host.search_path(), std::env::var("PATH").unwrap());
        let path = format!("{}:{path}:{programs}", scripts.display());
        let outcome = shell
            .env("PATH", path)
            .argument("-c")
            .argument(command)
            .run();
        assert!(outcome.status.success(), "{command}: {outcome:#?}");
    }

    /// Returns the global addresses of all attached sandboxes and, if there is one, of the host, each
    /// with the name of the sandbox. Another host is no sandbox.
    fn addresses(&self) -> BTreeSet<(String, String)> {
        let names = fs::read_dir("/run/netns").unwrap();
        let names = names.map(|it| it.unwrap().file_name().into_string().unwrap());
        let mut all = BTreeSet::new();
        for name in names.filter(|it| it != "outside") {
            // The file of a sandbox that is gone is no namespace.
            let inside = format!("ip -n {name} -brief address show scope global || true");
            all.extend(addresses_in(&name, &self.host.sh(&inside)));
        }
        if !all.is_empty() {
            let own = self.host.ip("-brief address show scope global");
            all.extend(addresses_in("", &own));
        }
        all
    }

    /// Returns the list of `ps`.
    #[track_caller]
    pub fn ps(&self) -> Vec<Value> {
        let listed = self.run(&["ps", "--json"]).ok();
        listed.as_array().unwrap().clone()
    }

    /// Returns what `metrics` prints; it must succeed.
    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        let outcome = self.run(&["metrics"]).run();
        assert!(outcome.status.success(), "{outcome:#?}");
        Metrics::parse(&outcome.stdout)
    }

    /// Writes a runtime's cache entry of a sandbox attached to `network`.
    pub fn remember(&self, network: &str, (pod, result): (&Sandbox, &Value)) {
        let entry = json!({
            "kind": "cniCacheV1", "containerId": pod.name(), "ifName": "eth0",
            "networkName": network, "netns": pod.path(), "result": result,
        });
        fs::create_dir_all(self.results()).unwrap();
        fs::write(self.remembered(network, pod), entry.to_string()).unwrap();
    }

    /// Returns the file of that entry.
    pub fn remembered(&self, network: &str, pod: &Sandbox) -> PathBuf {
        self.results()
            .join(format!("{network}-{}-eth0", pod.name()))
    }

    /// Returns the directory of cached results.
    pub fn results(&self) -> PathBuf {
        PathBuf::from("/var/lib/cni/results")
    }
}

/// Returns the addresses in the output of `ip -brief address`, each with the name of the place.
fn addresses_in(place: &str, output: &str) -> Vec<(String, String)> {
    let words = output.split_whitespace().filter(|it| it.contains('/'));
    words.map(|it| (place.to_owned(), it.to_owned())).collect()
}

/// Output and exit status of `cnitool doctor --json`.
#[derive(Debug)]
pub struct Findings {
    /// 0; 1 with warnings; 2 with problems.
    pub status: i32,
    list: Vec<Value>,
}

impl Findings {
    /// Parses a list of findings, worst last. Checks that the status matches the worst one, and that a
    /// test runs each command.
    #[track_caller]
    pub fn of(outcome: &Outcome) -> Self {
        let list: Vec<Value> = serde_json::from_str(&outcome.stdout)
            .unwrap_or_else(|error| panic!("{error}: {outcome:#?}"));
        let levels = ["ok", "warning", "problem"];
        let level = |it: &Value| levels.iter().position(|level| it["level"] == *level);
        let levels: Vec<_> = list.iter().map(|it| level(it).unwrap()).collect();
        assert!(levels.is_sorted(), "{outcome:#?}");
        let status = outcome.status.code().unwrap();
        let worst = levels.last().map(|it| i32::try_from(*it).unwrap());
        assert_eq!(Some(status), worst, "{outcome:#?}");
        let findings = Self { status, list };
        for command in findings.commands() {
            expect_tested(&command);
        }
        findings
    }

    /// Checks that a finding of this level and subject contains all of `words` in its message,
    /// impact or fix.
    #[track_caller]
    pub fn expect(&self, level: &str, subject: &str, words: &[&str]) {
        assert!(
            self.holds(level, subject, words),
            "no {level} of {subject} with {words:?}: {:#?}",
            self.list
        );
    }

    /// Returns whether such a finding exists, as in [`Self::expect`].
    pub fn holds(&self, level: &str, subject: &str, words: &[&str]) -> bool {
        let holds = |it: &Value| {
            let text = ["message", "impact", "fix"].map(|key| it[key].as_str().unwrap());
            let text = text.join("\n");
            words.iter().all(|word| text.contains(word))
        };
        let mut of = self.list.iter().filter(|it| it["level"] == level);
        of.any(|it| it["subject"] == subject && holds(it))
    }

    /// Checks that no finding of this subject is worse than ok.
    #[track_caller]
    pub fn expect_ok(&self, subject: &str) {
        let mut worse = self.list.iter().filter(|it| it["level"] != "ok");
        let worse = worse.find(|it| it["subject"] == subject);
        assert_eq!(worse, None, "{:#?}", self.list);
    }

    /// Returns the commands that fix this subject.
    pub fn fixes(&self, subject: &str) -> Vec<String> {
        let of = self.list.iter().filter(|it| it["subject"] == subject);
        Self::fixes_of(of)
    }

    /// Returns the commands of all subjects.
    pub fn commands(&self) -> Vec<String> {
        Self::fixes_of(self.list.iter())
    }

    fn fixes_of<'a>(findings: impl Iterator<Item = &'a Value>) -> Vec<String> {
        let fixes = findings.flat_map(|it| it["fix"].as_str().unwrap().lines());
        fixes.map(str::to_owned).collect()
    }
}
