//! host-local in directories that another user prepared, and its files' permissions.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tests::{Host, Place as _, other_user};

/// Creates another user's file, which must not change.
fn precious(host: &Host) -> PathBuf {
    let path = host.dir().join("precious");
    fs::write(&path, PRECIOUS).unwrap();
    path
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Lists all files below a directory.
fn below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(below(&path));
        }
        found.push(path);
    }
    found
}

#[test]
fn files_are_for_their_owner_and_directories_for_no_other_to_write() {
    let host = Host::new();
    let network = host.host_local().with("ipam.reuseDelay", "1h");
    network.call_for("ADD", "c1").ok();
    network.call_for("ADD", "c2").ok();
    network.call_for("DEL", "c1").ok();
    let paths = below(&host.lease_dir());
    assert!(paths.len() > 8, "{paths:?}");
    for path in paths {
        let limit = if path.is_dir() { 0o755 } else { 0o600 };
        assert_eq!(
            mode(&path) & !limit,
            0,
            "{} {:o}",
            path.display(),
            mode(&path)
        );
    }
}

#[test]
fn a_link_in_the_place_of_a_lease_is_taken_for_one_and_never_written_through() {
    let host = Host::new();
    let network = host.host_local();
    network.call_for("ADD", "c0").ok();
    let target = precious(&host);
    let leases = host.lease_dir().join("pods");
    for name in ["10.1.0.3", "10.1.0.4", "last_reserved_ip.0"] {
        fs::remove_file(leases.join(name)).ok();
        symlink(&target, leases.join(name)).unwrap();
    }
    symlink("/nowhere", leases.join("10.1.0.5")).unwrap();
    for container in ["c1", "c2", "c3"] {
        network.call_for("ADD", container).run();
    }
    for container in ["c0", "c1", "c2", "c3"] {
        network.call_for("DEL", container).ok();
    }
    network.gc(&[]).ok();
    assert_eq!(fs::read_to_string(target).unwrap(), PRECIOUS);
    assert!(!Path::new("/nowhere").exists());
}

#[test]
fn files_of_the_index_that_are_links_are_never_written_through() {
    let host = Host::new();
    let network = host.host_local().with("ipam.reuseDelay", "1s");
    network.call_for("ADD", "c0").ok();
    let target = precious(&host);
    let index = host.lease_dir().join(".host-local/pods");
    let ours: Vec<_> = below(&index)
        .into_iter()
        .filter(|it| it.is_file())
        .collect();
    let names = ["new", "state", "released/10.1.0.0", "records/c1:eth0"];
    for path in ours.into_iter().chain(names.map(|name| index.join(name))) {
        fs::remove_file(&path).ok();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(&target, &path).unwrap();
        for container in ["c1", "c2"] {
            network.call_for("ADD", container).run();
            network.call_for("DEL", container).run();
        }
        assert_eq!(
            fs::read_to_string(&target).unwrap(),
            PRECIOUS,
            "{}",
            path.display()
        );
    }
}

#[test]
fn a_lock_that_is_a_link_is_not_followed() {
    let host = Host::new();
    let network = host.host_local();
    let leases = host.lease_dir().join("pods");
    fs::create_dir_all(&leases).unwrap();
    symlink("/run/test/made-by-lock", leases.join("lock")).unwrap();
    network.call_for("ADD", "c1").error().expect(100, &["lock"]);
    assert!(!Path::new("/run/test/made-by-lock").exists());
}

#[test]
fn pipes_and_directories_in_the_place_of_files_delay_no_verb() {
    let host = Host::new();
    let network = host.host_local();
    network.call_for("ADD", "c0").ok();
    let leases = host.lease_dir().join("pods");
    let index = host.lease_dir().join(".host-local/pods");
    let pipes = [
        leases.join("10.1.0.3"),
        leases.join("last_reserved_ip.0"),
        index.join("state"),
        index.join("records/c1:eth0"),
    ];
    for path in &pipes {
        fs::remove_file(path).ok();
        host_fifo(path);
    }
    fs::create_dir(leases.join("10.1.0.4")).unwrap();
    let start = Instant::now();
    for container in ["c1", "c2"] {
        network.call_for("ADD", container).ok();
        network.call_for("DEL", container).ok();
    }
    network.gc(&[]).ok();
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

#[test]
fn configured_files_that_are_pipes_or_endless_delay_no_verb() {
    let host = Host::new();
    let pipe = host.dir().join("pipe");
    host_fifo(&pipe);
    for path in [pipe.to_str().unwrap(), "/dev/zero", "/run"] {
        let start = Instant::now();
        let resolv_conf = host.host_local().with("ipam.resolvConf", path);
        resolv_conf
            .call_for("ADD", "c1")
            .error()
            .expect(100, &[path]);
        let pod_cidr = host
            .host_local()
            .with("ipam.subnet", "usePodCidr")
            .with("ipam.podCidrFile", path);
        pod_cidr.call_for("ADD", "c1").error().expect(11, &[path]);
        assert!(start.elapsed() < PATIENCE, "{path}: {:?}", start.elapsed());
    }
    assert!(host.leases("pods").is_empty());
}

#[test]
fn results_that_are_pipes_or_endless_delay_no_command() {
    let host = Host::new();
    let tool = host.pods();
    let [a, b] = ["a", "b"].map(|name| host.sandbox(name));
    tool.on("add", "pods", &a).ok();
    let strange = tool.results().join("strange-c1-eth0");
    for place in [&strange, &tool.remembered("pods", &b)] {
        for make in ["mkfifo", "ln -s /dev/zero"] {
            host.sh(&format!("{make} {}", place.display()));
            let start = Instant::now();
            for words in [
                &["ps"][..],
                &["gc", "pods"],
                &["doctor"],
                &["metrics"],
                &["reload", "pods"],
            ] {
                tool.run(words).run();
            }
            for verb in ["add", "del"] {
                tool.on(verb, "pods", &b).run();
            }
            assert!(start.elapsed() < PATIENCE, "{make}: {:?}", start.elapsed());
            fs::remove_file(place).ok();
        }
    }
    assert_eq!(tool.ps().len(), 1);
    tool.on("del", "pods", &a).run();
}

#[test]
fn records_that_are_pipes_do_not_hold_del() {
    let host = Host::new();
    let a = host.sandbox("a");
    let portmap = host.ports().add(&a, &["8080:80"]);
    let record = Path::new("/run/cni/portmap/cni:pods:a:eth0");
    fs::remove_file(record).unwrap();
    host_fifo(record);
    portmap.del(&a);
    assert!(!record.exists());
}

/// Other users can put anything there, but this does not keep root out.
#[test]
fn directories_that_all_users_may_write_work_and_keep_owner_and_mode() {
    let host = Host::new();
    let network = host.host_local();
    let owner = other_user();
    chown(host.lease_dir(), Some(owner), None).unwrap();
    fs::set_permissions(host.lease_dir(), Permissions::from_mode(0o777)).unwrap();
    network.call_for("ADD", "c1").ok();
    assert_eq!(mode(&host.lease_dir()), 0o777, "not ours to change");
    assert_eq!(fs::metadata(host.lease_dir()).unwrap().uid(), owner);
    for path in below(&host.lease_dir()) {
        assert_eq!(mode(&path) & 0o022, 0, "{}", path.display());
    }
    network.call_for("DEL", "c1").ok();
    assert!(host.leases("pods").is_empty());
}

#[test]
fn a_data_directory_that_is_none_is_named() {
    let host = Host::new();
    File::create(host.dir().join("file")).unwrap();
    symlink("loop", host.dir().join("loop")).unwrap();
    for name in ["file", "loop", "file/below"] {
        let path = host.dir().join(name);
        let network = host
            .host_local()
            .with("ipam.dataDir", path.to_str().unwrap());
        let refusal = network.call_for("ADD", "c1").error();
        assert!(refusal.mentions(name), "{refusal:?}");
        let status = network.with("cniVersion", "1.1.0").call("STATUS").error();
        status.expect(50, &["dataDir"]);
    }
}

fn host_fifo(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    tests::run("mkfifo", &[path.to_str().unwrap()]);
}

const PRECIOUS: &str = "not a plugin's to change";

/// Time limit; a run takes some milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
