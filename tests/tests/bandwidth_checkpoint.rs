//! bandwidth: a checkpoint of the kubelet that is missing or cannot be read.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tests::Host;
use tests::allocated::{Pod, given};

/// Creates files that are no checkpoints, by their names.
fn make_no_checkpoints(directory: &Path) {
    fs::create_dir_all(directory.join("directory")).unwrap();
    fs::write(directory.join("garbage"), "{\"Data\":").unwrap();
    fs::write(directory.join("empty"), "").unwrap();
    fs::write(directory.join("target"), given().json().to_string()).unwrap();
    symlink("target", directory.join("link")).unwrap();
    mkfifo(&directory.join("fifo"), Mode::from_bits_truncate(0o600)).unwrap();
    let large = File::create(directory.join("large")).unwrap();
    large.set_len((16 << 20) + 1).unwrap();
}

#[test]
fn checkpoint_that_cannot_be_read_fails_add_and_status() {
    let host = Host::new();
    let a = Pod::new(&host, "a");
    let before = host.snapshot();
    let directory = Path::new("/run/test/checkpoints");
    make_no_checkpoints(directory);
    for (name, reason) in [
        ("directory", "not a regular file"),
        ("fifo", "not a regular file"),
        ("link", "symbolic links"),
        ("garbage", "EOF while parsing"),
        ("empty", "EOF while parsing"),
        ("large", "larger than 16 MiB"),
    ] {
        let path = directory.join(name);
        let network = a.network().with("kubeletCheckpoint", path.to_str());
        let words = [
            "kubeletCheckpoint",
            path.to_str().unwrap(),
            "--root-dir",
            reason,
        ];
        let refusal = a.call(&network).error();
        refusal.expect(100, &words);
        let status = network.with("cniVersion", "1.1.0").call("STATUS").error();
        status.expect(50, &words);
        assert!(status.mentions(&refusal.msg) && status.mentions(&refusal.details));
    }
    host.snapshot().assert_same_as(&before);
    given().write();
    a.network().with("cniVersion", "1.1.0").call("STATUS").ok();
    let other = a.network().with("kubeletCheckpoint", "checkpoint");
    a.call(&other)
        .error()
        .expect(7, &["kubeletCheckpoint", "absolute"]);
}

/// What ADD and STATUS say of a checkpoint that is missing below /run/test.
const MISSING: [&str; 3] = [
    "read kubeletCheckpoint /run/test/",
    "--root-dir",
    "No such file",
];

/// The kubelet does not start the pod of the first device plugin on a node that is not ready.
#[test]
fn status_only_reports_a_missing_checkpoint() {
    let host = Host::new();
    let network = host.bandwidth().with("podResources", true);
    let network = network.with("kubeletCheckpoint", "/run/test/kubelet/checkpoint");
    let status = network.with("cniVersion", "1.1.0").call("STATUS").run();
    assert!(status.status.success(), "{status:?}");
    let is_said = |it: &&str| status.stderr.contains(it);
    assert!(MISSING.iter().all(is_said), "{status:?}");
}

#[test]
fn a_missing_checkpoint_beside_a_kubelet_that_runs_means_no_devices() {
    let host = Host::new();
    let a = Pod::new(&host, "a");
    let directory = host.dir().join("device-plugins");
    fs::create_dir(&directory).unwrap();
    let checkpoint = directory.join("kubelet_internal_checkpoint");
    let network = a.network().with("kubeletCheckpoint", checkpoint.to_str());
    let refused = || a.call(&network).error().expect(100, &MISSING);
    refused();
    let socket = directory.join("kubelet.sock");
    fs::write(&socket, "").unwrap();
    refused();
    fs::remove_file(&socket).unwrap();
    let kubelet = UnixListener::bind(&socket).unwrap();
    let outcome = a.call(&network).run();
    outcome.ok();
    let text = format!("podResources: {} is missing", checkpoint.display());
    assert!(outcome.stderr.contains(&text), "{outcome:?}");
    assert_eq!((a.limits(), a.record()), ([0, 0], None));
    // An unreadable file stays an error.
    fs::write(&checkpoint, "").unwrap();
    a.call(&network).error().expect(100, &["EOF while parsing"]);
    fs::remove_file(&checkpoint).unwrap();
    // The socket of a kubelet that has ended.
    drop(kubelet);
    refused();
}
