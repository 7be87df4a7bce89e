//! cnitool install: all executables or none, complete, with the files that belong to them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::mount::{MsFlags, mount};
use tests::{EXECUTABLES, Example, Host, Invocation, at_once};

/// An installation into a directory of the test.
struct Installation<'h> {
    host: &'h Host,
    directory: PathBuf,
}

impl<'h> Installation<'h> {
    fn new(host: &'h Host) -> Self {
        let directory = host.dir().join("bin");
        fs::create_dir(&directory).unwrap();
        Self { host, directory }
    }

    /// Creates [`Self::new`] in which other files have all the names.
    fn over_others(host: &'h Host) -> Self {
        let installation = Self::new(host);
        for name in EXECUTABLES.iter() {
            fs::write(installation.directory.join(name), former(name)).unwrap();
        }
        installation
    }

    fn with(&self, words: &[&str]) -> Invocation {
        let tool = self.host.plugin("cnitool").argument("install");
        let tool = tool.env("NETCONFPATH", self.networks());
        let tool = words.iter().fold(tool, Invocation::argument);
        tool.argument(&self.directory)
    }

    fn networks(&self) -> PathBuf {
        self.host.dir().join("net.d")
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.directory.join(name)).unwrap()
    }

    /// Checks that every name has its earlier content.
    #[track_caller]
    fn is_as_it_was(&self) {
        assert_eq!(listed(&self.directory), sorted(&EXECUTABLES));
        for name in EXECUTABLES.iter() {
            assert_eq!(self.read(name), former(name).into_bytes());
        }
    }

    /// Checks that every name is the executable under test and no other file exists.
    #[track_caller]
    fn is_complete(&self) {
        assert_eq!(listed(&self.directory), sorted(&EXECUTABLES));
        for name in EXECUTABLES.iter() {
            assert!(self.read(name) == under_test(self.host, name), "{name}");
            let mode = fs::metadata(self.directory.join(name)).unwrap();
            assert_eq!(mode.permissions().mode() & 0o7777, 0o755, "{name}");
        }
    }
}

fn former(name: &str) -> String {
    format!("#!/bin/sh\necho the former {name}\n")
}

fn under_test(host: &Host, name: &str) -> Vec<u8> {
    let invocation = host.plugin(name);
    fs::read(invocation.command().get_program()).unwrap()
}

fn sorted(names: &[&str]) -> Vec<String> {
    let mut names: Vec<_> = names.iter().map(|it| (*it).to_owned()).collect();
    names.sort();
    names
}

fn listed(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Returns a directory with links to the executables under test, some of which the test changes.
fn copies(host: &Host) -> PathBuf {
    let directory = host.dir().join("copies");
    fs::create_dir(&directory).unwrap();
    for name in EXECUTABLES.iter() {
        let invocation = host.plugin(name);
        symlink(invocation.command().get_program(), directory.join(name)).unwrap();
    }
    directory
}

#[test]
fn what_is_installed_attaches_pods() {
    let host = Host::new();
    let installation = Installation::new(&host);
    installation.with(&[]).ok();
    installation.is_complete();
    let example = Example::list(&host, "bridge.conflist");
    let a = host.sandbox("a");
    let add = example.on("add", &a);
    let result = add.env("CNI_PATH", &installation.directory).ok();
    assert_eq!(result["ips"][0]["address"], "10.80.1.2/24");
}

#[test]
fn plugins_that_run_go_on() {
    let host = Host::new();
    let installation = Installation::new(&host);
    let bridge = installation.directory.join("bridge");
    fs::copy("/bin/cat", &bridge).unwrap();
    let mut running = Command::new(&bridge);
    let running = running.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = running.spawn().unwrap();
    installation.with(&[]).ok();
    installation.is_complete();
    drop(running.stdin.take());
    assert!(running.wait().unwrap().success());
}

#[test]
fn link_to_a_foreign_executable_is_replaced_and_not_followed() {
    let host = Host::new();
    let installation = Installation::new(&host);
    let others = host.dir().join("others");
    fs::write(&others, former("bridge")).unwrap();
    symlink(&others, installation.directory.join("bridge")).unwrap();
    installation.with(&[]).ok();
    installation.is_complete();
    assert_eq!(fs::read_to_string(&others).unwrap(), former("bridge"));
}

#[test]
fn nothing_is_installed_if_an_executable_does_not_run() {
    let host = Host::new();
    let installation = Installation::over_others(&host);
    let from = copies(&host);
    let last = from.join("cnitool");
    fs::remove_file(&last).unwrap();
    let with = || installation.with(&["--from", from.to_str().unwrap()]);
    with().expect_failure(&["copies/cnitool", "No such file", "--from"]);
    installation.is_as_it_was();
    fs::write(&last, "\x7fELF of another machine").unwrap();
    with().expect_failure(&["as cnitool", "another kind of processor"]);
    installation.is_as_it_was();
    fs::write(&last, "#!/bin/sh\nexit 3").unwrap();
    with().expect_failure(&["as cnitool", "exit status: 3"]);
    installation.is_as_it_was();
}

#[test]
fn directory_from_which_nothing_can_be_run_is_refused() {
    let host = Host::new();
    let installation = Installation::new(&host);
    let (tmpfs, nothing) = (Some("tmpfs"), None::<&str>);
    let flags = MsFlags::MS_NOEXEC;
    mount(tmpfs, &installation.directory, tmpfs, flags, nothing).unwrap();
    installation
        .with(&[])
        .expect_failure(&["as bridge", "noexec"]);
    assert!(listed(&installation.directory).is_empty());
}

/// A mount point cannot be renamed.
#[test]
fn replaced_executables_are_restored_after_a_failure() {
    let host = Host::new();
    let installation = Installation::over_others(&host);
    let last = installation.directory.join("cnitool");
    let nothing = None::<&str>;
    mount(Some(&last), &last, nothing, MsFlags::MS_BIND, nothing).unwrap();
    installation.with(&[]).expect_failure(&["cnitool", "busy"]);
    installation.is_as_it_was();
    fs::remove_file(installation.directory.join("bridge")).unwrap();
    installation.with(&[]).expect_failure(&["cnitool", "busy"]);
    assert!(!listed(&installation.directory).contains(&"bridge".into()));
}

#[test]
fn every_name_is_a_complete_file_whenever_it_is_killed() {
    let host = Host::new();
    let installation = Installation::over_others(&host);
    let start = Instant::now();
    installation.with(&[]).ok();
    let whole = start.elapsed();
    for part in 1..=5 {
        for name in EXECUTABLES.iter() {
            fs::write(installation.directory.join(name), former(name)).unwrap();
        }
        installation.with(&[]).kill_after(whole * part / 5);
        for name in EXECUTABLES.iter() {
            let found = installation.read(name);
            let is_whole = found == former(name).as_bytes() || found == under_test(&host, name);
            assert!(is_whole, "{name} after {part}/5");
        }
    }
    installation.with(&[]).ok();
    installation.is_complete();
}

#[test]
fn an_interruption_leaves_all_old_or_all_new_executables() {
    let host = Host::new();
    let installation = Installation::over_others(&host);
    let start = Instant::now();
    installation.with(&[]).ok();
    let whole = start.elapsed();
    for (part, signal) in (1..=8).zip(["INT", "HUP"].into_iter().cycle()) {
        for name in EXECUTABLES.iter() {
            fs::write(installation.directory.join(name), former(name)).unwrap();
        }
        let wait = format!("{}", (whole * part / 8).as_secs_f64());
        let interrupted = ["timeout", "--signal", signal, &wait].map(str::to_owned);
        installation.with(&[]).under(&interrupted).run();
        let is_new = installation.read("bridge") == under_test(&host, "bridge");
        if is_new {
            installation.is_complete();
        } else {
            installation.is_as_it_was();
        }
    }
}

#[test]
fn several_at_once_do_not_disturb_each_other() {
    let host = Host::new();
    let installation = Installation::over_others(&host);
    at_once(&[(); 3], |()| installation.with(&[]).ok());
    installation.is_complete();
}

#[test]
fn some_are_skipped_and_existing_ones_may_stay() {
    let host = Host::new();
    let installation = Installation::over_others(&host);
    let skipping = installation.with(&[]);
    let outcome = skipping.env("SKIP_CNI_BINARIES", "bridge,flannel").run();
    outcome.ok();
    let [skipped, unknown] = ["skipped, by SKIP_CNI_BINARIES: bridge\n", "no flannel"];
    assert!(outcome.stderr.contains(skipped) && outcome.stderr.contains(unknown));
    assert_eq!(installation.read("bridge"), former("bridge").into_bytes());
    assert!(installation.read("portmap") == under_test(&host, "portmap"));
    fs::remove_file(installation.directory.join("portmap")).unwrap();
    fs::write(installation.directory.join("loopback"), former("loopback")).unwrap();
    let keeping = installation.with(&[]);
    keeping.env("UPDATE_CNI_BINARIES", "false").ok();
    assert_eq!(
        installation.read("loopback"),
        former("loopback").into_bytes()
    );
    assert!(installation.read("portmap") == under_test(&host, "portmap"));
    let neither = installation.with(&[]).env("UPDATE_CNI_BINARIES", "maybe");
    neither.expect_failure(&["UPDATE_CNI_BINARIES", "maybe"]);
}

#[test]
fn a_user_without_write_access_gets_advice() {
    let host = Host::new();
    let installation = Installation::over_others(&host);
    host.read_only(&installation.directory);
    let words = ["bin", "Read-only file system", "name a directory"];
    installation.with(&[]).expect_failure(&words);
    installation.is_as_it_was();
}

#[test]
fn configuration_comes_after_the_plugins_and_not_over_another() {
    let host = Host::new();
    let installation = Installation::new(&host);
    let source = host.dir().join("10-pods.conflist");
    let place = installation.networks().join("10-pods.conflist");
    let with = |words: &[&str]| {
        let conflist = ["--conflist", source.to_str().unwrap()];
        installation.with(&[&conflist, words].concat()).run()
    };
    fs::write(&source, "{}").unwrap();
    with(&[]).expect_failure(&["10-pods.conflist", "name"]);
    fs::write(&source, list("weave-net")).unwrap();
    with(&[]).expect_failure(&["weave-net", "is not in"]);
    assert!(listed(&installation.directory).is_empty());
    fs::write(&source, list("bridge")).unwrap();
    with(&[]).ok();
    assert_eq!(fs::read_to_string(&place).unwrap(), list("bridge"));
    assert_eq!(listed(&installation.networks()), ["10-pods.conflist"]);
    let again = with(&[]);
    again.ok();
    assert!(again.stderr.contains("is there already"), "{again:#?}");
    fs::write(&source, list("loopback")).unwrap();
    with(&[]).expect_failure(&["net.d/10-pods.conflist", "--force"]);
    assert_eq!(fs::read_to_string(&place).unwrap(), list("bridge"));
    with(&["--force"]).ok();
    assert_eq!(fs::read_to_string(&place).unwrap(), list("loopback"));
}

#[test]
fn configuration_is_refused_without_its_plugins_or_where_none_is_read() {
    let host = Host::new();
    let installation = Installation::new(&host);
    let source = host.dir().join("10-pods.conflist");
    let conflist = |path: &Path| installation.with(&["--conflist", path.to_str().unwrap()]);
    fs::write(&source, list("bridge")).unwrap();
    let skipping = conflist(&source).env("SKIP_CNI_BINARIES", "bridge").run();
    skipping.expect_failure(&["plugin bridge", "is not in"]);
    let foreign = r#", "ipam": {"type": "whereabouts"}}]"#;
    fs::write(&source, list("bridge").replace("}]", foreign)).unwrap();
    conflist(&source).expect_failure(&["plugin whereabouts", "is not in"]);
    let single = source.with_extension("json");
    fs::write(&single, list("bridge")).unwrap();
    conflist(&single).expect_failure(&["*.conflist"]);
    fs::write(
        &source,
        r#"{"cniVersion": "1.0.0", "name": "pods", "type": "bridge"}"#,
    )
    .unwrap();
    conflist(&source).expect_failure(&["contains a single plugin"]);
    assert!(listed(&installation.directory).is_empty());
}

fn list(plugin: &str) -> String {
    format!(r#"{{"cniVersion": "1.0.0", "name": "pods", "plugins": [{{"type": "{plugin}"}}]}}"#)
}

#[test]
fn drop_ins_are_for_the_managers_that_the_host_has() {
    let host = Host::new();
    let installation = Installation::new(&host);
    host.hide("/etc");
    fs::create_dir("/etc/systemd").unwrap();
    let outcome = installation.with(&["--drop-ins"]).run();
    outcome.ok();
    assert!(outcome.stderr.contains("there is no /etc/NetworkManager"));
    let expect = |files: &[&str]| {
        for file in files {
            let example = fs::read_to_string(Example::directory().join(file));
            let place = file.replace("host/", "/etc/");
            assert_eq!(fs::read_to_string(place).unwrap(), example.unwrap());
        }
    };
    expect(&[
        "host/systemd/network/05-cni.network",
        "host/systemd/network/05-cni.link",
    ]);
    fs::create_dir("/etc/NetworkManager").unwrap();
    installation.with(&["--drop-ins"]).ok();
    expect(&["host/NetworkManager/conf.d/05-cni.conf"]);
    fs::write("/etc/systemd/network/05-cni.link", "my own").unwrap();
    let outcome = installation.with(&["--drop-ins"]).run();
    outcome.expect_failure(&["05-cni.link", "differs", "--force"]);
    installation.with(&["--drop-ins", "--force"]).ok();
    expect(&["host/systemd/network/05-cni.link"]);
}

/// The script finds the executables beside itself, in the build directory, or in a given directory.
#[test]
fn script_finds_the_executables() {
    let host = Host::new();
    let installation = Installation::new(&host);
    let script = Example::directory().join("../scripts/install.sh");
    let copied = host.dir().join("install.sh");
    fs::copy(&script, &copied).unwrap();
    let run = |script: &Path, words: &[&Path]| {
        let mut command = Command::new(script);
        command.args(words).arg(&installation.directory);
        command.env("CARGO_TARGET_DIR", host.dir().join("target"));
        command.output().unwrap()
    };
    let refusal = run(&copied, &[]);
    let said = String::from_utf8(refusal.stderr).unwrap();
    assert!(
        !refusal.status.success() && said.contains("--from"),
        "{said}"
    );
    let from = copies(&host);
    fs::create_dir(host.dir().join("target")).unwrap();
    let installs = |script: &Path, words: &[&Path]| {
        let output = run(script, words);
        assert!(output.status.success(), "{output:?}");
        installation.is_complete();
        fs::remove_dir_all(&installation.directory).unwrap();
    };
    installs(&copied, &[Path::new("--from"), &from]);
    symlink(&from, host.dir().join("target/release")).unwrap();
    installs(&copied, &[]);
    let beside = from.join("install.sh");
    fs::copy(&script, &beside).unwrap();
    installs(&beside, &[]);
}
