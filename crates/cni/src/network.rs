//! The network configuration on standard input.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Error, NetworkName, SearchPath, SpecVersion, json, keys, note, repeated};

/// The JSON object on standard input, whose keys are not interpreted yet.
#[derive(Debug, Clone)]
pub struct Document {
    pub(crate) config: Value,
    stdin: Vec<u8>,
}

impl Document {
    /// Parses the content of standard input.
    ///
    /// # Errors
    /// [`Error::Decode`]: the content is not a JSON object.
    pub fn decode(stdin: Vec<u8>) -> Result<Self, Error> {
        match serde_json::from_slice(&stdin) {
            Ok(config @ Value::Object(_)) => Ok(Self { config, stdin }),
            Ok(other) => Err(undecodable(format!("expected an object, found {other}"))),
            Err(error) => Err(undecodable(error.to_string())),
        }
    }
}

/// The configuration of one plugin. `name` and `cniVersion` are parsed and valid.
#[derive(Debug, Clone)]
pub struct Network {
    /// The key `name`.
    pub name: NetworkName,
    /// The key `cniVersion`: the version of the result.
    pub version: SpecVersion,
    /// `CNI_PATH`: the directories of delegates.
    pub path: SearchPath,
    document: Document,
}

impl Network {
    /// Parses `name` and `cniVersion`, and keeps all other keys for later.
    ///
    /// # Errors
    /// - [`Error::Decode`]: `name` or `cniVersion` has the wrong type.
    /// - [`Error::InvalidConfig`]: `name` is missing or invalid.
    /// - [`Error::IncompatibleVersion`]: `cniVersion` is not among `supported`.
    pub fn parse(
        document: Document,
        path: SearchPath,
        supported: &'static [SpecVersion],
    ) -> Result<Self, Error> {
        let head = json::read::<Head>(&document.config, "");
        let head = head.map_err(|error| undecodable(error.to_string()))?.value;
        let name = name(&head.name)?;
        let known = head.cni_version.parse().ok();
        let version = known.filter(|version| supported.contains(version));
        let version = version.ok_or(Error::IncompatibleVersion {
            requested: head.cni_version,
            supported,
        })?;
        Ok(Self {
            name,
            version,
            path,
            document,
        })
    }

    /// Parses the plugin's own keys. Ignores keys that neither `T` nor the protocol has, and names
    /// these keys in one line on standard error.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] with the key whose value has the wrong type.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.read(&self.document.config, "", COMMON_KEYS)
    }

    /// Parses only those of the plugin's keys that `T` has. Does not report other keys as unknown,
    /// because `T` may lack keys that the plugin knows.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] with the key whose value has the wrong type.
    pub fn quiet_config<T: DeserializeOwned>(&self) -> Result<T, Error> {
        Ok(json::read(&self.document.config, "")?.value)
    }

    /// Returns a key that occurs twice in the object under `key`. Returns `None` if no key does.
    /// Other functions, such as [`Self::config`], see only the last value of a repeated key.
    pub fn repeated_key(&self, key: &str) -> Option<String> {
        repeated::key(self.stdin(), key)
    }

    /// Parses the section `ipam`, for an IPAM plugin. Names unknown keys of the section in one line
    /// on standard error.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`]: the section is missing or a value has the wrong type.
    pub fn ipam<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.read(self.ipam_section()?, "ipam", &["ipam.type"])
    }

    /// Parses only `keys` of the section `ipam`, so the values of its other keys may be invalid.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`]: the section is missing, or one of `keys` has a value of the wrong
    /// type.
    pub fn ipam_keys<T: DeserializeOwned>(&self, keys: &[&str]) -> Result<T, Error> {
        let mut section = self.ipam_section()?.clone();
        if let Value::Object(all) = &mut section {
            all.retain(|name, _| keys.iter().any(|key| key.eq_ignore_ascii_case(name)));
        }
        Ok(json::read(&section, "ipam")?.value)
    }

    fn ipam_section(&self) -> Result<&Value, Error> {
        self.top("ipam")
            .ok_or_else(|| Error::invalid("ipam", "this section is missing"))
    }

    /// Returns `ipam.type`, the delegate's file name. Returns `None` if the key is missing or
    /// empty.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the value is not a plain file name. A slash would let the
    /// configuration run an executable outside `CNI_PATH` (CVE-2021-20206).
    pub fn ipam_type(&self) -> Result<Option<String>, Error> {
        let name: String = self.key("ipam.type")?;
        if name.contains(['/', '\0']) || name == "." || name == ".." {
            let reason = format!("{name:?} is no bare file name");
            return Err(Error::invalid("ipam.type", reason));
        }
        Ok(Some(name).filter(|name| !name.is_empty()))
    }

    /// Returns `ipamTimeout`, the delegate's time limit for one verb. Returns [`IPAM_TIMEOUT`] if the
    /// key is missing or empty.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the value is not a duration or is zero.
    pub(crate) fn ipam_timeout(&self) -> Result<Duration, Error> {
        let key = "ipamTimeout";
        let text: String = self.key(key)?;
        let time = keys::duration(&text, IPAM_TIMEOUT, key)?;
        if time.is_zero() {
            let reason = format!("{text:?}: a plugin needs more time than none");
            return Err(Error::invalid(key, reason));
        }
        Ok(time)
    }

    /// Parses `runtimeConfig`: the runtime's values for the capabilities that the configuration
    /// declares. Returns the default if the key is missing.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] with the key whose value has the wrong type.
    pub fn runtime_config<T: DeserializeOwned + Default>(&self) -> Result<T, Error> {
        section(self.top("runtimeConfig"), "runtimeConfig")
    }

    /// Returns whether the configuration declares `capability` as true. The runtime then passes the
    /// values of the capability in `runtimeConfig`.
    #[must_use]
    pub fn declares(&self, capability: &str) -> bool {
        let declared = self.top("capabilities").and_then(Value::as_object);
        declared.is_some_and(|it| it.get(capability) == Some(&Value::Bool(true)))
    }

    /// Parses `args.cni`, the arguments inside the configuration (CONVENTIONS.md of CNI). Returns
    /// the default if the key is missing.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] with the key whose value has the wrong type.
    pub fn args_cni<T: DeserializeOwned + Default>(&self) -> Result<T, Error> {
        section(self.args_section(), "args.cni")
    }

    fn args_section(&self) -> Option<&Value> {
        json::value(self.top("args")?.as_object()?, "cni")
    }

    /// Parses one key of the document, of `ipam`, of `runtimeConfig` or of `args.cni`, such as
    /// `runtimeConfig.mac`. Parses no other key. Returns the default if the key is missing.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the value has the wrong type, or what contains the key is no
    /// object.
    pub fn key<T: DeserializeOwned + Default>(&self, path: &str) -> Result<T, Error> {
        let (parent, key) = path.rsplit_once('.').unwrap_or(("", path));
        let object = match parent {
            "" => Some(&self.document.config),
            "args.cni" => self.args_section(),
            top => self.top(top),
        };
        match object {
            Some(Value::Object(object)) => section(json::value(object, key), path),
            Some(other) => {
                let reason = format!("expected an object, found {other}");
                Err(Error::invalid(parent, reason))
            }
            None => Ok(T::default()),
        }
    }

    /// Returns the requested addresses: the lists `runtimeConfig.ips` and `args.cni.ips`, each with
    /// its key for error messages. A missing list is empty.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] with the key whose value has the wrong type.
    pub fn asked_ips(&self) -> Result<[(&'static str, Vec<String>); 2], Error> {
        let [runtime, args] = ["runtimeConfig.ips", "args.cni.ips"];
        Ok([(runtime, self.key(runtime)?), (args, self.key(args)?)])
    }

    /// Returns the bytes of standard input. Delegates receive them unchanged.
    pub(crate) fn stdin(&self) -> &[u8] {
        &self.document.stdin
    }

    /// Returns the configuration with this value of the top-level key `key`.
    pub(crate) fn with(&self, key: &str, value: Value) -> Self {
        let mut network = self.clone();
        if let Value::Object(keys) = &mut network.document.config {
            keys.retain(|it, _| !it.eq_ignore_ascii_case(key));
            keys.insert(key.to_owned(), value);
        }
        network.document.stdin = network.document.config.to_string().into_bytes();
        network
    }

    /// Returns the value of the top-level key `key`, which may be spelled in any case. Returns
    /// `None` for an absent key and for the value `null`.
    pub(crate) fn top(&self, key: &str) -> Option<&Value> {
        json::value(self.document.config.as_object()?, key)
    }

    /// Returns whether the top-level key `key` exists, even with the value `null`.
    pub(crate) fn has(&self, key: &str) -> bool {
        let keys = self.document.config.as_object();
        keys.is_some_and(|keys| json::entry(keys, key).is_some())
    }

    /// Parses `value`, the value of the key `at`. Names unknown keys in one line on standard error,
    /// except the keys in `common`.
    fn read<T: DeserializeOwned>(
        &self,
        value: &Value,
        at: &str,
        common: &[&str],
    ) -> Result<T, Error> {
        let mut read = json::read(value, at)?;
        let is_common = |key: &str| common.iter().any(|it| it.eq_ignore_ascii_case(key));
        read.unknown.retain(|key| !is_common(key));
        if !read.unknown.is_empty() {
            let (name, keys) = (&self.name, read.unknown.join(", "));
            note!("network {name}: unknown keys ignored: {keys}");
        }
        Ok(read.value)
    }
}

/// Keys that are read before all others, because they decide whether the plugin accepts the
/// request.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Head {
    cni_version: String,
    name: String,
}

fn undecodable(reason: String) -> Error {
    Error::Decode {
        what: "network configuration".into(),
        reason,
    }
}

fn name(name: &str) -> Result<NetworkName, Error> {
    if name.is_empty() {
        return Err(Error::invalid("name", "the network's name is missing"));
    }
    name.parse()
        .map_err(|reason| Error::invalid("name", format!("{reason}")))
}

fn section<T: DeserializeOwned + Default>(value: Option<&Value>, at: &str) -> Result<T, Error> {
    match value {
        Some(value) => Ok(json::read(value, at)?.value),
        None => Ok(T::default()),
    }
}

/// Default of the key `ipamTimeout`, which limits one call of the IPAM plugin. The kubelet waits
/// four minutes for a new sandbox and two minutes for a DEL. An ADD calls the IPAM plugin up to
/// twice (its rollback calls DEL) and a DEL calls it once, so both verbs fit into these times.
pub(crate) const IPAM_TIMEOUT: Duration = Duration::from_mins(1);

/// Keys that the configuration of every plugin may contain. No plugin reports them as unknown.
pub const COMMON_KEYS: &[&str] = &[
    "cniVersion",
    "cniVersions",
    "name",
    "type",
    "args",
    "capabilities",
    "disableCheck",
    "disableGC",
    "dns",
    "ipam",
    "ipamTimeout",
    "logFile",
    "logLevel",
    "prevResult",
    "runtimeConfig",
    "cni.dev/attachments",
    "cni.dev/valid-attachments",
];
