//! cnitool doctor: container runtimes that execute other plugins of the same names.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use tests::{EXECUTABLES, Findings, Host, Tool};

/// A host with the network `pods` of `bridge` and host-local, and the directories `ours`, with this
/// suite's plugins, and `others`, with scripts of the same names.
struct Node<'h> {
    tool: Tool<'h>,
    ours: PathBuf,
    others: PathBuf,
}

impl<'h> Node<'h> {
    fn new(host: &'h Host) -> Self {
        host.hide("/etc");
        host.hide("/usr/share");
        let tool = host.tool();
        let bridge = host.bridge().with("isDefaultGateway", true);
        let bridge = bridge.with("ipMasq", true);
        tool.configure("pods", &[bridge.config().clone()]);
        let [ours, others] = ["ours", "others"].map(|name| host.dir().join(name));
        fs::create_dir(&ours).unwrap();
        for name in EXECUTABLES.iter() {
            let invocation = host.plugin(name);
            symlink(invocation.command().get_program(), ours.join(name)).unwrap();
        }
        put(&others, "bridge");
        put(&others, "host-local");
        Self { tool, ours, others }
    }

    /// Writes a configuration file in which `OURS` and `OTHERS` stand for the two directories.
    fn configure(&self, file: &str, text: &str) {
        let text = text.replace("OURS", self.ours.to_str().unwrap());
        let text = text.replace("OTHERS", self.others.to_str().unwrap());
        fs::create_dir_all(Path::new(file).parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    /// Checks that doctor reports this runtime with `words`, and the file to edit.
    #[track_caller]
    fn expect(&self, level: &str, words: &[&str], file: &str) -> Findings {
        let findings = self.tool.doctor();
        findings.expect(level, "runtime", words);
        let command = format!("vi {file}");
        assert!(
            findings.fixes("runtime").contains(&command),
            "{findings:#?}"
        );
        findings
    }

    #[track_caller]
    fn is_well(&self, runtime: &str) {
        let findings = self.tool.doctor();
        assert_eq!(findings.status, 0, "{findings:#?}");
        findings.expect("ok", "runtime", &["are executed by", runtime]);
    }
}

fn put(directory: &Path, name: &str) {
    fs::create_dir_all(directory).unwrap();
    let path = directory.join(name);
    fs::write(&path, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

const CONTAINERD: &str = "/etc/containerd/config.toml";

/// As Debian configures containerd.
#[test]
fn containerd_1_looks_in_one_directory() {
    let host = Host::new();
    let node = Node::new(&host);
    assert_eq!(node.tool.doctor().status, 0);
    let text = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = \"OTHERS\"\n";
    node.configure(CONTAINERD, text);
    let others = ["bridge", "host-local"].map(|it| node.others.join(it).display().to_string());
    let words = [
        &*format!("containerd executes {}, not the", others.join(", ")),
        "Put ",
        "first in bin_dir of [plugins.\"io.containerd.grpc.v1.cri\".cni]",
    ];
    node.expect("warning", &words, CONTAINERD);
    fs::remove_file(node.others.join("bridge")).unwrap();
    let words = ["containerd finds no bridge in", "ADDs of networks"];
    node.expect("problem", &words, CONTAINERD);
    node.configure(CONTAINERD, &text.replace("OTHERS", "OURS"));
    node.is_well("containerd");
    node.configure(CONTAINERD, "disabled_plugins = ['cri']\n");
    let findings = node.tool.doctor();
    assert!(!findings.holds("ok", "runtime", &[]), "{findings:#?}");
}

#[test]
fn containerd_2_looks_in_several_directories_of_an_imported_file() {
    let host = Host::new();
    let node = Node::new(&host);
    node.configure(
        CONTAINERD,
        "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n",
    );
    let (file, section) = (
        "/etc/containerd/conf.d/cni.toml",
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\n",
    );
    let directories = |list: &str| node.configure(file, &format!("{section}bin_dirs = {list}\n"));
    directories("['OTHERS', 'OURS']");
    node.expect("warning", &["containerd executes", "bin_dirs"], file);
    directories("['OURS', 'OTHERS']");
    node.is_well("containerd");
    // Only what the second directory lacks comes from the first one.
    directories("['/nosuch', 'OTHERS', 'OURS']");
    fs::remove_file(node.others.join("bridge")).unwrap();
    let findings = node.expect("warning", &["others/host-local, not"], file);
    assert!(!findings.holds("warning", "runtime", &["others/bridge"]));
}

#[test]
fn cri_o_looks_where_its_last_drop_in_says() {
    let host = Host::new();
    let node = Node::new(&host);
    let network = "[crio.network]\nplugin_dirs = ['OTHERS', 'OURS']\n";
    node.configure("/etc/crio/crio.conf", network);
    let words = ["CRI-O executes", "plugin_dirs of [crio.network]"];
    node.expect("warning", &words, "/etc/crio/crio.conf");
    let drop_in = "/etc/crio/crio.conf.d/10-cni.conf";
    node.configure(drop_in, &network.replace("'OTHERS', ", ""));
    node.is_well("CRI-O");
    node.configure("/etc/crio/crio.conf.d/20-cni.conf", network);
    node.expect("warning", &words, "/etc/crio/crio.conf.d/20-cni.conf");
}

#[test]
fn podman_looks_in_its_own_list_if_it_uses_cni() {
    let host = Host::new();
    let node = Node::new(&host);
    host.hide("/usr/local");
    put(Path::new("/usr/local/libexec/cni"), "bridge");
    let vendor = "/usr/share/containers/containers.conf";
    let (operator, drop_in) = (
        "/etc/containers/containers.conf",
        "/etc/containers/containers.conf.d/cni.conf",
    );
    node.configure(vendor, "[network]\nnetwork_backend = 'cni'\n");
    let words = ["podman executes /usr/local/libexec/cni/bridge"];
    node.expect("warning", &words, operator);
    node.configure(operator, "[network]\ncni_plugin_dirs = ['OTHERS']\n");
    let words = ["others/bridge", "cni_plugin_dirs of [network]"];
    node.expect("warning", &words, operator);
    node.configure(
        drop_in,
        "[network]\ncni_plugin_dirs = ['OURS', {append = true}]\n",
    );
    node.expect("warning", &["others/bridge"], drop_in);
    node.configure(drop_in, "[network]\ncni_plugin_dirs = ['OURS']\n");
    node.is_well("podman");
    node.configure(drop_in, "[network]\nnetwork_backend = 'netavark'\n");
    let findings = node.tool.doctor();
    assert!(!findings.holds("ok", "runtime", &[]), "{findings:#?}");
}

#[test]
fn invalid_files_are_named() {
    let host = Host::new();
    let node = Node::new(&host);
    for (runtime, file, text, reason) in [
        (
            "containerd",
            CONTAINERD,
            "version = 2\nx =\n",
            "not valid TOML: line 2",
        ),
        (
            "CRI-O",
            "/etc/crio/crio.conf",
            "crio.network.plugin_dirs = 1",
            "plugin_dirs",
        ),
        (
            "podman",
            "/etc/containers/containers.conf",
            "[",
            "not valid TOML: line 1",
        ),
    ] {
        node.configure(file, text);
        let findings = node.tool.doctor();
        findings.expect("warning", "runtime", &[runtime, file, reason]);
        assert_eq!(findings.status, 1, "{findings:#?}");
        fs::remove_file(file).unwrap();
    }
    fs::create_dir(CONTAINERD).unwrap();
    let words = ["containerd", CONTAINERD, "not a regular file"];
    node.tool.doctor().expect("warning", "runtime", &words);
}

/// The same executables in two directories are no fault.
#[test]
fn equal_executables_are_the_same() {
    let host = Host::new();
    let node = Node::new(&host);
    for name in ["bridge", "host-local"] {
        fs::copy(node.ours.join(name), node.others.join(name)).unwrap();
    }
    node.configure(
        "/etc/crio/crio.conf",
        "[crio.network]\nplugin_dirs = ['OTHERS']\n",
    );
    node.is_well("CRI-O");
}
