//! Tests of `Chain`. A shell script acts as every plugin and records its calls.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::cache::Cache;

struct Field {
    directory: TempDir,
    network: Conflist,
}

impl Field {
    /// Creates a network of this CNI version with the plugins `a` and `b`.
    fn new(version: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            // Each plugin is a symbolic link to the script, not a new file. If the test wrote a new
            // file, a child process of another test could still have that file open for writing,
            // and the kernel would refuse to run it.
            symlink(SCRIPT, directory.path().join(name)).unwrap();
            let result = json!({"dns": {"domain": name}, "x": 1}).to_string();
            fs::write(directory.path().join(format!("{name}.result")), result).unwrap();
        }
        let list = json!({"name": "pods", "cniVersion": version, "plugins": [
            {"type": "a", "capabilities": {"mac": true, "ips": false}, "mtu": 1400},
            {"type": "b"},
        ]});
        let network = Conflist::parse(list.to_string().into_bytes()).unwrap();
        Self { directory, network }
    }

    fn run<T>(&self, verb: impl FnOnce(&Chain<'_>) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let directory = self.directory.path();
        let directories = Directories {
            networks: directory.to_owned(),
            plugins: SearchPath::parse(&directory.to_string_lossy()),
            cache: Cache(vec![directory.to_owned()]),
        };
        verb(&Chain::new(&self.network, &directories))
    }

    fn status(&self) -> anyhow::Result<()> {
        self.run(|chain| {
            chain.status()?;
            Ok(())
        })
    }

    fn fails(&self, plugin: &str, verb: &str) {
        let object = json!({"code": 7, "msg": "no luck", "details": "at all"});
        fs::write(self.file(&format!("{plugin}.{verb}")), object.to_string()).unwrap();
    }

    /// Returns the calls since the last use of this function, each as `VERB plugin`.
    fn calls(&self) -> Vec<String> {
        let log = fs::read_to_string(self.file("log")).unwrap_or_default();
        drop(fs::remove_file(self.file("log")));
        log.lines().map(str::to_owned).collect()
    }

    /// Returns the standard input of the last call of `plugin`.
    fn request(&self, plugin: &str) -> Value {
        let bytes = fs::read(self.file(&format!("{plugin}.stdin"))).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    fn variables(&self, plugin: &str) -> String {
        fs::read_to_string(self.file(&format!("{plugin}.environment"))).unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/chain_tests.sh");

fn sandbox(netns: &str) -> Sandbox {
    let capabilities = json!({"mac": "02:00:00:00:00:01", "ips": ["192.0.2.7/24"]});
    Sandbox {
        attachment: Attachment {
            network: "pods".parse().unwrap(),
            container: "c1".parse().unwrap(),
            interface: "eth0".parse().unwrap(),
        },
        netns: netns.into(),
        arguments: crate::sandbox::Arguments {
            cni: vec![["IP".into(), "192.0.2.7".into()]],
            capabilities: capabilities.as_object().unwrap().clone(),
        },
    }
}

#[test]
fn add_hands_the_result_down_the_chain_and_del_goes_back() {
    let field = Field::new("1.0.0");
    let sandbox = sandbox("/run/netns/a");
    let result = field.run(|chain| chain.add(&sandbox)).unwrap();
    assert_eq!(
        result,
        json!({"cniVersion": "1.0.0", "dns": {"domain": "b"}, "x": 1})
    );
    assert_eq!(field.calls(), ["ADD a", "ADD b"]);
    assert_eq!(
        field.request("a"),
        json!({"name": "pods", "cniVersion": "1.0.0", "type": "a", "mtu": 1400,
            "capabilities": {"mac": true, "ips": false},
            "runtimeConfig": {"mac": "02:00:00:00:00:01"}})
    );
    let of_a = json!({"cniVersion": "1.0.0", "dns": {"domain": "a"}, "x": 1});
    assert_eq!(
        field.request("b"),
        json!({"name": "pods", "cniVersion": "1.0.0", "type": "b", "prevResult": of_a})
    );
    field.run(|chain| chain.check(&sandbox)).unwrap();
    assert_eq!(field.calls(), ["CHECK a", "CHECK b"]);
    assert_eq!(field.request("a")["prevResult"], result);
    field.run(|chain| chain.del(&sandbox)).unwrap();
    assert_eq!(field.calls(), ["DEL b", "DEL a"]);
    assert_eq!(field.request("a")["prevResult"], result);
    field.run(|chain| chain.del(&sandbox)).unwrap();
    assert_eq!(field.request("a").get("prevResult"), None);
}

#[test]
fn environment_is_the_one_of_the_protocol() {
    let field = Field::new("1.1.0");
    let path = field.directory.path().display().to_string();
    field
        .run(|chain| chain.add(&sandbox("/run/netns/a")))
        .unwrap();
    assert_eq!(
        field.variables("a"),
        format!(
            "CNI_ARGS=IP=192.0.2.7\nCNI_COMMAND=ADD\nCNI_CONTAINERID=c1\nCNI_IFNAME=eth0\n\
             CNI_NETNS=/run/netns/a\nCNI_PATH={path}\n"
        )
    );
    field.status().unwrap();
    assert_eq!(
        field.variables("a"),
        format!(
            "CNI_ARGS=\nCNI_COMMAND=STATUS\nCNI_CONTAINERID=\nCNI_IFNAME=\nCNI_NETNS=\n\
             CNI_PATH={path}\n"
        )
    );
}

#[test]
fn failure_names_the_plugin_and_ends_the_chain() {
    let field = Field::new("1.0.0");
    let sandbox = sandbox("/run/netns/a");
    field.fails("a", "ADD");
    let error = field.run(|chain| chain.add(&sandbox)).unwrap_err();
    assert_eq!(format!("{error:#}"), "plugin a: no luck: at all (code 7)");
    assert_eq!(field.calls(), ["ADD a"]);
    field.fails("b", "DEL");
    let error = field.run(|chain| chain.del(&sandbox)).unwrap_err();
    assert_eq!(format!("{error:#}"), "plugin b: no luck: at all (code 7)");
    assert_eq!(field.calls(), ["DEL b"]);
}

#[test]
fn verbs_are_not_asked_of_older_versions() {
    let field = Field::new("0.3.1");
    let sandbox = sandbox("/run/netns/a");
    field.run(|chain| chain.add(&sandbox)).unwrap();
    assert!(field.run(|chain| chain.check(&sandbox)).is_err());
    field.status().unwrap();
    assert_eq!(field.calls(), ["ADD a", "ADD b"]);
    field.run(|chain| chain.del(&sandbox)).unwrap();
    assert_eq!(field.request("a").get("prevResult"), None);
    assert!(!field.file("results/pods-c1-eth0").exists());
}

#[test]
fn del_goes_by_the_list_that_add_went_by() {
    let mut field = Field::new("1.0.0");
    let sandbox = sandbox("/run/netns/a");
    field.run(|chain| chain.add(&sandbox)).unwrap();
    field.calls();
    let edited = json!({"name": "pods", "cniVersion": "1.1.0", "plugins": [{"type": "b"}]});
    field.network = Conflist::parse(edited.to_string().into_bytes()).unwrap();
    field.run(|chain| chain.del_as_added(&sandbox)).unwrap();
    assert_eq!(field.calls(), ["DEL b", "DEL a"]);
    assert_eq!(field.request("a")["mtu"], 1400);
    // That DEL emptied the cache, so the next one uses the current configuration.
    field.run(|chain| chain.del_as_added(&sandbox)).unwrap();
    assert_eq!(field.calls(), ["DEL b"]);
}

#[test]
fn remove_all_tries_every_step_and_takes_nothing_for_valid() {
    let field = Field::new("1.1.0");
    field
        .run(|chain| chain.add(&sandbox("/proc/self/ns/net")))
        .unwrap();
    field.calls();
    field.fails("b", "DEL");
    field.fails("a", "GC");
    let error = field
        .run(|chain| {
            chain.remove_all()?;
            Ok(())
        })
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("plugin b: no luck") && error.contains("plugin a: no luck"),
        "{error}"
    );
    assert_eq!(field.calls(), ["DEL b", "GC a", "GC b"]);
    assert_eq!(field.request("b")["cni.dev/valid-attachments"], json!([]));
}

#[test]
fn plugin_that_is_missing_or_invalid_is_reported() {
    let field = Field::new("1.1.0");
    fs::write(field.file("a.result"), r#"{"ips": 1}"#).unwrap();
    let error = field
        .run(|chain| chain.add(&sandbox("/run/netns/a")))
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("plugin a: decode its result"),
        "{error:#}"
    );
    fs::remove_file(field.file("a")).unwrap();
    let error = field.status().unwrap_err().to_string();
    assert!(error.starts_with("plugin a is not in "), "{error}");
}
