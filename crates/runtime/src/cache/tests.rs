use serde_json::{Map, json};

use super::*;

fn network() -> Conflist {
    let list = json!({"name": "pods", "cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]});
    Conflist::parse(list.to_string().into_bytes()).unwrap()
}

fn sandbox(container: &str) -> Sandbox {
    Sandbox {
        attachment: Attachment {
            network: "pods".parse().unwrap(),
            container: container.parse().unwrap(),
            interface: "eth0".parse().unwrap(),
        },
        netns: "/run/netns/a".into(),
        arguments: Arguments {
            cni: vec![["IP".into(), "192.0.2.7".into()]],
            capabilities: Map::new(),
        },
    }
}

/// The test expects the object that libcni 1.3 writes for this attachment.
#[test]
fn file_is_the_one_of_libcni() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache(vec![directory.path().to_owned()]);
    cache
        .write(
            &network(),
            &sandbox("c1"),
            json!({"cniVersion": "1.0.0", "dns": {}}),
        )
        .unwrap();
    let bytes = fs::read(directory.path().join("results/pods-c1-eth0")).unwrap();
    let expected = json!({
        "kind": "cniCacheV1",
        "containerId": "c1",
        "config": BASE64_STANDARD.encode(network().bytes),
        "ifName": "eth0",
        "networkName": "pods",
        "netns": "/run/netns/a",
        "cniArgs": [["IP", "192.0.2.7"]],
        "result": {"cniVersion": "1.0.0", "dns": {}},
    });
    assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), expected);
}

#[test]
fn what_was_written_is_read_listed_and_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache(vec![directory.path().to_owned()]);
    let [a, b] = ["c1", "c1-x"].map(sandbox);
    assert!(cache.read(&a.attachment).unwrap().is_none());
    assert!(cache.of_network(&network().name).unwrap().is_empty());
    for it in [&a, &b] {
        cache
            .write(&network(), it, json!({"cniVersion": "1.0.0"}))
            .unwrap();
    }
    fs::write(directory.path().join("results/pods-c2-eth0"), "{").unwrap();
    let entry = cache.read(&a.attachment).unwrap().unwrap();
    assert_eq!(entry.arguments, a.arguments);
    let listed = cache.of_network(&network().name).unwrap();
    let listed: Vec<_> = listed
        .into_iter()
        .map(|(attachment, _)| attachment)
        .collect();
    assert_eq!(listed, [a.attachment.clone(), b.attachment.clone()]);
    for _ in 0..2 {
        cache.remove(&a.attachment).unwrap();
    }
    assert!(
        cache
            .of_network(&"other".parse().unwrap())
            .unwrap()
            .is_empty()
    );
    assert_eq!(cache.of_network(&network().name).unwrap().len(), 1);
}

#[test]
fn entries_of_all_directories_are_read_and_the_first_is_written() {
    let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [first, second] = [0, 1].map(|it: usize| directories[it].path().to_owned());
    let cache = Cache(vec![first.clone(), second.clone()]);
    let elsewhere = Cache(vec![second.clone()]);
    let [a, b] = ["c1", "c2"].map(sandbox);
    let write = |cache: &Cache, sandbox| cache.write(&network(), sandbox, json!({})).unwrap();
    write(&cache, &a);
    write(&elsewhere, &b);
    assert!(first.join("results/pods-c1-eth0").exists());
    assert!(elsewhere.read(&a.attachment).unwrap().is_none());
    for it in [&a, &b] {
        assert!(cache.read(&it.attachment).unwrap().is_some());
        assert!(cache.written(&it.attachment).is_some());
    }
    assert_eq!(cache.entries().unwrap().len(), 2);
    write(&elsewhere, &a);
    cache.remove(&a.attachment).unwrap();
    assert!(elsewhere.read(&a.attachment).unwrap().is_none());
    assert_eq!(cache.entries().unwrap().len(), 1);
}

#[test]
fn entry_of_another_attachment_with_the_same_file_name_stays() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache(vec![directory.path().to_owned()]);
    let live = sandbox("c1-x");
    cache.write(&network(), &live, json!({})).unwrap();
    let gone = Attachment {
        network: "pods-c1".parse().unwrap(),
        container: "x".parse().unwrap(),
        ..live.attachment.clone()
    };
    assert!(cache.read(&gone).unwrap().is_none());
    assert!(cache.written(&gone).is_none());
    cache.remove(&gone).unwrap();
    assert!(cache.read(&live.attachment).unwrap().is_some());
}

#[test]
fn result_is_converted_to_the_version_of_the_list() {
    let stored = json!({"cniVersion": "1.0.0", "ips": [{"address": "192.0.2.7/24"}], "x": 1});
    let same = Entry::new(&network(), &sandbox("c1"), stored.clone());
    assert_eq!(
        same.result(SpecVersion::V1_0_0).unwrap(),
        Some(stored.clone())
    );
    let older = same.result(SpecVersion::V0_3_1).unwrap().unwrap();
    assert_eq!(older["ips"][0]["version"], "4");
    let bare = Entry::from_json(stored.clone()).unwrap();
    assert_eq!(bare.result(SpecVersion::V1_0_0).unwrap(), Some(stored));
}

#[test]
fn entry_of_another_kind_is_refused_and_not_taken_for_a_result() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache(vec![directory.path().to_owned()]);
    let results = directory.path().join("results");
    fs::create_dir(&results).unwrap();
    let later = json!({"kind": "cniCacheV2", "ips": [{"address": "10.1.0.2/24"}]});
    fs::write(results.join("pods-c1-eth0"), later.to_string()).unwrap();
    let error = cache.read(&sandbox("c1").attachment).unwrap_err();
    assert!(format!("{error:#}").contains("cniCacheV2"), "{error:#}");
    let old = json!({"cniVersion": "0.4.0"});
    fs::write(results.join("pods-c1-eth0"), old.to_string()).unwrap();
    assert!(cache.read(&sandbox("c1").attachment).unwrap().is_some());
}
