//! conf-examples/kubernetes/ installs the executables on a node with only the privileges that it
//! needs.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Stdio};

use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tests::{Agent, EXECUTABLES, Example, Host, Invocation, Place as _, eventually, other_user};

/// Returns the pod of the installation.
fn pod() -> Value {
    let [manifest] = manifests("kubernetes/daemonset.yaml").try_into().unwrap();
    pod_of(&manifest)
}

fn manifests(file: &str) -> Vec<Value> {
    let text = fs::read_to_string(Example::directory().join(file)).unwrap();
    let documents = serde_norway::Deserializer::from_str(&text);
    documents
        .map(|it| Value::deserialize(it).unwrap())
        .collect()
}

fn pod_of(manifest: &Value) -> Value {
    assert_eq!(manifest["kind"], "DaemonSet");
    let (selected, template) = (&manifest["spec"]["selector"], &manifest["spec"]["template"]);
    assert_eq!(selected["matchLabels"], template["metadata"]["labels"]);
    template["spec"].clone()
}

/// Returns the arguments of the recipe's lines that begin with this word.
fn recipe(word: &str) -> Vec<String> {
    let file = Example::directory().join("kubernetes/Containerfile");
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix(word));
    lines.map(|line| line.trim().to_owned()).collect()
}

/// Creates the image's /cni in a directory of the test.
fn image(host: &Host) {
    fs::create_dir(host.dir().join("cni")).unwrap();
    for name in EXECUTABLES.iter() {
        let invocation = host.plugin(name);
        let program = invocation.command();
        fs::copy(program.get_program(), host.dir().join("cni").join(name)).unwrap();
    }
}

#[test]
fn pod_is_on_every_node_and_may_write_to_one_directory() {
    let pod = pod();
    assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(
        pod["hostNetwork"], true,
        "there may be no other network yet"
    );
    assert_eq!(pod["automountServiceAccountToken"], false);
    for key in ["hostPID", "hostIPC", "securityContext", "initContainers"] {
        assert_eq!(pod[key], Value::Null, "{key}");
    }
    assert_eq!(pod["containers"].as_array().unwrap().len(), 1);
    let expected = json!({
        "runAsUser": 0,
        "runAsGroup": 0,
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    assert_eq!(pod["containers"][0]["securityContext"], expected);
    let host_path = json!({"path": "/opt/cni/bin", "type": "DirectoryOrCreate"});
    let volumes = json!([{"name": "plugins", "hostPath": host_path}]);
    assert_eq!(pod["volumes"], volumes);
    let mounts = json!([{"name": "plugins", "mountPath": "/opt/cni/bin"}]);
    assert_eq!(pod["containers"][0]["volumeMounts"], mounts);
}

#[test]
fn image_holds_the_executables_and_nothing_else() {
    assert_eq!(recipe("FROM"), ["scratch"]);
    let all = format!("{} cni-agent /cni/", EXECUTABLES.join(" "));
    assert_eq!(recipe("COPY"), [all]);
    assert_eq!(recipe("ENTRYPOINT"), [r#"["/cni/cnitool", "install"]"#]);
    assert!(recipe("RUN").is_empty());
}

/// Does what the kubelet and the runtime do with the pod: mounts the node's directory, and runs
/// process 1 as root with the pod's capability. As on a node of kubespray, another user owns the
/// directory.
#[test]
fn container_installs_and_stays_until_it_is_terminated() {
    let host = Host::new();
    image(&host);
    let (node, container) = (host.dir().join("node"), pod()["containers"][0].clone());
    let place = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
    host.hide("/opt");
    for directory in [&node, Path::new(place)] {
        fs::create_dir_all(directory).unwrap();
    }
    let nothing = None::<&str>;
    mount(Some(&node), place, nothing, MsFlags::MS_BIND, nothing).unwrap();
    let owner = other_user();
    fs::write(node.join("bridge"), "an older one").unwrap();
    for path in [&node, &node.join("bridge")] {
        chown(path, Some(owner), None).unwrap();
    }
    let mut container = Container::start(&run(&host, &container));
    let installed: Vec<_> = EXECUTABLES.iter().map(|name| node.join(name)).collect();
    container.wait_for_message(": installed: ");
    assert!(installed.iter().all(|it| is_installed(&host, it)));
    // It removes the file that it locked after this message.
    let listed = || fs::read_dir(&node).unwrap().count();
    assert!(eventually(|| listed() == EXECUTABLES.len()));
    assert!(container.process.try_wait().unwrap().is_none());
    // The pod of the next release does this while the old one still exists.
    let next = host.program(&host.dir().join("cni/cnitool"));
    next.argument("install").argument(place).ok();
    assert_eq!(fs::metadata(&node).unwrap().uid(), owner);
    container.end();
}

#[test]
fn agent_gets_its_mounts_and_three_capabilities() {
    let [configuration, manifest] = manifests("kubernetes/agent.yaml").try_into().unwrap();
    let pod = pod_of(&manifest);
    assert_eq!(pod["automountServiceAccountToken"], false);
    expect_agent(&configuration, &pod, false);
}

#[test]
fn cluster_network_installs_and_runs_an_agent_with_few_rights() {
    let all = manifests("kubernetes/cluster.yaml");
    let [
        account,
        role,
        binding,
        policy,
        bound,
        configuration,
        manifest,
    ] = all.try_into().unwrap();
    let may = json!([
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    ]);
    assert_eq!(role["rules"], may);
    expect_policy(&account, &policy["spec"]);
    assert_eq!(bound["spec"]["policyName"], policy["metadata"]["name"]);
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    let pod = pod_of(&manifest);
    let name = &account["metadata"]["name"];
    assert_eq!(
        [&binding["subjects"][0]["name"], &pod["serviceAccountName"]],
        [name; 2]
    );
    assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
    let install = &pod["initContainers"][0];
    assert_eq!(install["image"], pod["containers"][0]["image"]);
    let plugins = json!([{"name": "plugins", "mountPath": "/opt/cni/bin"}]);
    assert_eq!(install["volumeMounts"], plugins);
    expect_agent(&configuration, &pod, true);
    expect_gateway(&configuration);
}

/// Expects that pods can start on a node that joined again with another pod CIDR.
fn expect_gateway(configuration: &Value) {
    let json = configuration["data"]["agent.json"].as_str().unwrap();
    let sections: Value = serde_json::from_str(json).unwrap();
    let bridge = &sections["cluster"]["conflist"]["template"]["plugins"][0];
    assert_eq!(bridge["forceAddress"], true);
}

/// Expects that the policy judges what the account may change.
fn expect_policy(account: &Value, policy: &Value) {
    let [namespace, name] =
        ["namespace", "name"].map(|it| account["metadata"][it].as_str().unwrap());
    let user = format!("\"system:serviceaccount:{namespace}:{name}\"");
    let condition = policy["matchConditions"][0]["expression"].as_str().unwrap();
    assert!(condition.ends_with(&user), "{condition}");
    let judged = &policy["matchConstraints"]["resourceRules"][0]["resources"];
    assert_eq!(judged, &json!(["nodes", "nodes/status"]));
}

/// Expects that the pod's agent has the mounts and capabilities that its configuration needs.
fn expect_agent(configuration: &Value, pod: &Value, writes_conflist: bool) {
    assert_eq!(
        pod["hostNetwork"], true,
        "it looks after the node's network"
    );
    let container = &pod["containers"][0];
    let security = &container["securityContext"];
    let expected = json!({"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW", "SYS_ADMIN"]});
    assert_eq!(security["capabilities"], expected);
    assert_eq!(security["readOnlyRootFilesystem"], true);
    let probe = json!({"host": "127.0.0.1", "port": 9799, "path": "/healthz"});
    assert_eq!(container["readinessProbe"]["httpGet"], probe);
    let volumes = pod["volumes"].as_array().unwrap();
    for mount in container["volumeMounts"].as_array().unwrap() {
        assert!(
            volumes.iter().any(|it| it["name"] == mount["name"]),
            "{mount}"
        );
    }
    let json = configuration["data"]["agent.json"].as_str().unwrap();
    let sections: Value = serde_json::from_str(json).unwrap();
    let networks = (PathBuf::from("/etc/cni/net.d"), writes_conflist);
    for (path, is_written) in needed(&sections).into_iter().chain([networks]) {
        let mounts = container["volumeMounts"].as_array().unwrap().iter();
        let mut mounts = mounts.filter(|it| path.starts_with(it["mountPath"].as_str().unwrap()));
        let mount = mounts
            .next()
            .unwrap_or_else(|| panic!("no mount has {}", path.display()));
        assert!(!is_written || mount["readOnly"].is_null(), "{mount}");
        // A directory stays the same one when a file in it is replaced.
        let volume = volumes.iter().find(|it| it["name"] == mount["name"]);
        let kind = volume.unwrap()["hostPath"]["type"].as_str().unwrap();
        assert!(kind.starts_with("Directory"), "{volume:?}");
    }
    accepts(&Host::new(), &sections);
}

/// Returns the paths of the node that the agent and the plugins that it calls use, and whether they
/// write there.
fn needed(sections: &Value) -> Vec<(PathBuf, bool)> {
    let mut needed: Vec<_> = [
        ("/opt/cni/bin", false),
        ("/var/lib/cni", true),
        ("/run/cni", true),
        ("/run/netns", false),
        ("/var/run/netns", false),
    ]
    .map(|(path, is_written)| (PathBuf::from(path), is_written))
    .into();
    let socket = sections["gc"]["runtimeSocket"].as_str().unwrap();
    needed.push((socket.into(), false));
    let logs = sections["metrics"]["logFiles"].as_array().unwrap();
    assert!(
        !logs.is_empty(),
        "calls of plugins are counted without edits"
    );
    needed.extend(logs.iter().map(|it| (it.as_str().unwrap().into(), true)));
    needed
}

#[test]
fn agent_runs_with_the_example_and_few_capabilities() {
    let host = Host::new();
    let file = Example::directory().join("agent.json");
    let mut sections: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    host.ip("link add eth0 type bridge");
    sections["devices"]["kubeletDir"] = json!(host.dir());
    fs::create_dir(host.dir().join("device-plugins")).unwrap();
    accepts(&host, &sections);
    let unit = Example::directory().join("systemd/cni-agent.service");
    let unit = fs::read_to_string(unit).unwrap();
    assert!(unit.contains("ExecStart=/usr/sbin/cni-agent --config /etc/cni/agent.json\n"));
    let bounding = "CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_SYS_ADMIN\n";
    assert!(unit.contains(bounding));
    // The kubelet admits no pod before the agent can register.
    assert!(unit.contains("Before=kubelet.service\n"));
    assert!(unit.contains("RequiresMountsFor=/opt/cni/bin /var/lib/cni /var/lib/kubelet\n"));
    // What plugins need: namespaces of pods, sysctls, device files.
    assert!(unit.contains("RestrictNamespaces=net mnt\n"));
    assert!(unit.contains("RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET AF_INET6\n"));
    for forbidden in [
        "ProtectKernelTunables",
        "PrivateNetwork",
        "PrivateDevices",
        "ProtectProc",
    ] {
        assert!(!unit.contains(forbidden), "{forbidden}");
    }
}

/// Starts the agent, which must accept the sections and drop all but four capabilities.
fn accepts(host: &Host, sections: &Value) {
    fs::create_dir_all(host.dir().join("net.d")).unwrap();
    let agent = Agent::start(host, sections);
    let status = || fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    // CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_PTRACE and CAP_SYS_ADMIN: bits 12, 13, 19 and 21.
    let few = format!("{:016x}", (1 << 12) | (1 << 13) | (1 << 19) | (1 << 21));
    let is_set = |name: &str| status().lines().any(|it| it == format!("{name}:\t{few}"));
    assert!(eventually(|| ["CapBnd", "CapPrm", "CapEff"]
        .iter()
        .all(|it| is_set(it))));
    assert!(!agent.log().contains("agent.json"), "{}", agent.log());
}

/// Returns the container's entry point with its arguments and environment.
fn run(host: &Host, container: &Value) -> Invocation {
    let words: Vec<_> = container["args"].as_array().unwrap().iter().collect();
    let mut tool = host
        .program(&host.dir().join("cni/cnitool"))
        .argument("install");
    for word in words {
        tool = tool.argument(word.as_str().unwrap());
    }
    for variable in container["env"].as_array().unwrap() {
        let [name, value] = ["name", "value"].map(|key| variable[key].as_str().unwrap());
        tool = tool.env(name, value);
    }
    let first = ["unshare", "--pid", "--fork", "--kill-child"];
    let capabilities = &container["securityContext"]["capabilities"];
    assert_eq!(capabilities["drop"], json!(["ALL"]));
    let added = capabilities["add"].as_array().unwrap().iter();
    let added: Vec<_> = added
        .map(|it| it.as_str().unwrap().to_lowercase())
        .collect();
    let added: Vec<_> = added.iter().map(String::as_str).collect();
    tool.with_capabilities(&added)
        .under(&first.map(str::to_owned))
}

fn is_installed(host: &Host, file: &Path) -> bool {
    let source = host.dir().join("cni").join(file.file_name().unwrap());
    fs::read(file).is_ok_and(|found| found == fs::read(source).unwrap())
}

/// A process whose child is process 1 of a pid namespace.
struct Container {
    process: Child,
    messages: BufReader<ChildStderr>,
}

impl Container {
    fn start(run: &Invocation) -> Self {
        let mut command = run.command();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let messages = BufReader::new(process.stderr.take().unwrap());
        Self { process, messages }
    }

    /// Waits for a line with `word` on standard error, which must not end before. A busy machine
    /// copies and runs the executables slowly, so the wait has no deadline of its own.
    fn wait_for_message(&mut self, word: &str) {
        let mut log = String::new();
        while !log.contains(word) {
            let length = self.messages.read_line(&mut log).unwrap();
            assert_ne!(length, 0, "{word:?} is not in {log:?}");
        }
    }

    /// Sends SIGTERM to process 1, which must end successfully.
    fn end(&mut self) {
        let id = self.process.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        let first = Pid::from_raw(children.trim().parse().unwrap());
        kill(first, Signal::SIGTERM).unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // The kernel kills its child with it.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
