//! host-device: the keys that name the device, by a tree in place of sysfs.

use std::fs;
use std::path::Path;

use serde_json::json;
use tests::{Host, Place as _};

/// A tree in place of sysfs, in which `ens5` is the link of devices.
fn fake_sysfs(host: &Host) {
    host.tmpfs("/sys", "");
    let pci = "/sys/devices/pci0000:00";
    for (directory, driver) in [
        (format!("{pci}/0000:00:19.0/net/ens5"), "e1000"),
        (format!("{pci}/0000:00:1a.0/virtio3/net/ens5"), "virtio-pci"),
        (format!("{pci}/0000:00:1b.0"), "vfio-pci"),
        (format!("{pci}/mlx5_core.sf.4/net/ens5"), ""),
    ] {
        fs::create_dir_all(&directory).unwrap();
        let device = Path::new(&directory).ancestors();
        let device = device.filter(|it| it.parent() == Some(Path::new(pci)));
        let device = device.last().unwrap();
        let bus = if driver.is_empty() {
            "auxiliary"
        } else {
            "pci"
        };
        let bus = format!("/sys/bus/{bus}/devices");
        fs::create_dir_all(&bus).unwrap();
        let link = Path::new(&bus).join(device.file_name().unwrap());
        std::os::unix::fs::symlink(device, link).unwrap();
        if !driver.is_empty() {
            let driver = format!("/sys/bus/pci/drivers/{driver}");
            fs::create_dir_all(&driver).unwrap();
            std::os::unix::fs::symlink(driver, device.join("driver")).unwrap();
        }
    }
}

#[test]
fn device_is_found_by_each_key() {
    let host = Host::new();
    let network = host.nic().without("device");
    fake_sysfs(&host);
    let directory = "/sys/devices/pci0000:00/0000:00:19.0";
    let by = |key: &str, value: &str| network.clone().with(key, value);
    let b = host.sandbox("b");
    let long = "name-of-more-than-15-bytes";
    host.ip(&format!("link property add dev ens5 altname {long}"));
    for network in [
        by("device", long),
        by("hwaddr", "02-00-00-00-05-01"),
        by("kernelpath", directory),
        by("pciBusID", "0000:00:19.0"),
        by("pcibusid", "0000:00:1a.0"),
        by("runtimeConfig", "").with("runtimeConfig", json!({"deviceID": "0000:00:19.0"})),
        by("pciBusID", "none").with("runtimeConfig", json!({"deviceID": "mlx5_core.sf.4"})),
    ] {
        let a = host.sandbox("a");
        let result = network.add(&a);
        assert_eq!(a.mac("eth0"), "02:00:00:00:05:01", "{:?}", network.config());
        network.check(&a, &result).ok();
        let refusal = network.on("ADD", &b).error();
        assert!(refusal.mentions("cni:pods/a/eth0 has it"), "{refusal:?}");
        network.del(&a);
        assert!(host.has_link("ens5"));
        a.remove();
    }
}

#[test]
fn device_for_a_program_such_as_dpdk_is_reported_and_not_moved() {
    let host = Host::new();
    let network = host
        .nic()
        .without("device")
        .with("pciBusID", "0000:00:1b.0");
    fake_sysfs(&host);
    let before = host.snapshot();
    let a = host.sandbox("a");
    let result = network.add(&a);
    let interface = json!({"name": "eth0", "sandbox": a.path()});
    assert_eq!(result["interfaces"], json!([interface]));
    assert_eq!(result["ips"][0]["address"], "10.1.0.2/24");
    assert_eq!(a.links(), ["lo"]);
    network.check(&a, &result).ok();
    network.del(&a);
    host.snapshot().assert_same_as(&before);
}

/// By its name, the IPAM plugin uses the link to release the lease.
#[test]
fn failed_add_of_a_device_for_a_program_releases_the_lease() {
    let host = Host::new();
    fake_sysfs(&host);
    let plugin = host.plugin("host-local").command();
    host.script("dhcp", &format!("exec {}", plugin.get_program().display()));
    let network = host.nic().without("device").with("ipam.type", "dhcp");
    let network = network.with("pciBusID", "0000:00:1b.0");
    let a = host.sandbox("a");
    let closed = ["sh", "-c", "exec \"$@\" >/dev/full", "sh"].map(str::to_owned);
    let outcome = network.on("ADD", &a).under(&closed).run();
    assert!(!outcome.status.success(), "{outcome:?}");
    assert!(host.leases("pods").is_empty(), "{outcome:?}");
    network.add(&a);
    assert_eq!(host.leases("pods").len(), 1);
    network.del(&a);
    assert!(host.leases("pods").is_empty());
}

#[test]
fn invalid_keys_are_refused() {
    let host = Host::new();
    let network = host.nic().without("device");
    fake_sysfs(&host);
    let a = host.sandbox("a");
    for (key, value) in [
        ("cniVersion", json!("1.0.0")),
        ("hwaddr", json!("02:00:00")),
        ("kernelpath", json!("/sys/devices/../class/net/ens5")),
        ("kernelpath", json!("/sys/class/net/ens5")),
        ("pciBusID", json!("../0000:00:19.0")),
        ("pciBusID", json!("0000:00:ff.0")),
        ("runtimeConfig", json!({"deviceID": "0000:00:ff.0"})),
        ("device", json!(5)),
    ] {
        let network = network.clone().with(key, value.clone());
        network.on("ADD", &a).error().expect(7, &[]);
    }
    assert!(host.leases("pods").is_empty());
}
