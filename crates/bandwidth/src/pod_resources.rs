//! The key `podResources`: limits from the devices that the kubelet allocated to the pod.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use cni::{AddRequest, Error, keys, note};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use serde_json::Value;
use tc::BitsPerSecond;

use crate::record::Allocation;
use crate::resource::{FORM, KEY, Resource};
use crate::{Asked, RawConfig, checkpoint};

/// The device-plugin resources that limit a pod, and where to read which devices the pod has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodResources {
    /// Full names of the resources that limit a pod. `None` stands for all resources whose names
    /// contain a bandwidth, such as `example.org/egress-10mbit`.
    names: Option<Vec<String>>,
    checkpoint: PathBuf,
    priority: Priority,
    /// Value of the key `defaultBurst` in bits; 0 if it is missing.
    default_burst: u64,
}

/// Which rate limits a pod that has both devices with a bandwidth and a rate from another source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    /// The rate of the devices. A rate in the plugin's own keys is only the operator's default for
    /// all containers.
    Allocated,
    /// The lower of the two rates. A rate from the runtime or the pod's annotations is requested
    /// for the pod. It must not exceed the rate of the devices, which the scheduler has reserved.
    Lower,
}

impl PodResources {
    /// Reads the key `podResources`, and the keys `kubeletCheckpoint` and `defaultBurst`. Returns
    /// `None` if `podResources` is missing, `false` or an empty list.
    ///
    /// # Errors
    /// Code 7 with the key whose value is invalid.
    pub(crate) fn parse(raw: &RawConfig, priority: Priority) -> Result<Option<Self>, Error> {
        let names = match &raw.pod_resources {
            None | Some(Value::Bool(false)) => return Ok(None),
            Some(Value::Bool(true)) => None,
            Some(Value::Array(names)) if names.is_empty() => return Ok(None),
            Some(Value::Array(names)) => Some(listed(names)?),
            Some(_) => return Err(Error::invalid(KEY, WANTED)),
        };
        let (text, key) = (&raw.kubelet_checkpoint, "kubeletCheckpoint");
        Ok(Some(Self {
            names,
            checkpoint: keys::absolute(text, DEFAULT_CHECKPOINT, key)?,
            priority,
            default_burst: raw.default_burst.unwrap_or_default(),
        }))
    }

    /// Returns the limit of one direction for a pod whose devices have this rate. `asked` is the
    /// limit from the configuration, the runtime or the pod's annotations. If it is given,
    /// [`Priority`] decides.
    pub(crate) fn limit(&self, asked: Option<Asked>, rate: BitsPerSecond) -> Asked {
        let of_devices = Asked {
            rate,
            burst: self.default_burst,
            burst_key: (self.default_burst != 0).then(|| "defaultBurst".to_owned()),
            within: None,
        };
        let is_lower = |asked: &Asked| self.priority == Priority::Lower && asked.rate <= rate;
        // A rate that is requested for the pod can be below the rate of its devices. It never
        // raises the limit above that rate.
        match asked.filter(is_lower) {
            Some(requested) => requested.within(of_devices),
            None => of_devices,
        }
    }

    /// Reads from the kubelet's checkpoint which bandwidth the kubelet allocated to the pod of an
    /// ADD. Returns an empty allocation if `CNI_ARGS` has no `K8S_POD_UID`.
    ///
    /// # Errors
    /// - Code 4: `CNI_ARGS` is malformed.
    /// - Code 7: the pod has two resources of one direction, or a rate is out of range.
    /// - Code 100: the checkpoint cannot be read. If only the file is missing, while the kubelet
    ///   accepts connections beside it, the kubelet has allocated nothing yet.
    pub(crate) fn allocated(&self, request: &AddRequest) -> anyhow::Result<Allocation> {
        let args = request.args()?;
        let Some(pod) = args.value("K8S_POD_UID").filter(|uid| !uid.is_empty()) else {
            note("podResources: CNI_ARGS has no K8S_POD_UID, so the kubelet allocated nothing");
            return Ok(Allocation::default());
        };
        let devices = match checkpoint::read(&self.checkpoint, pod) {
            Err(error) if is_missing(&error) && kubelet_runs_beside(&self.checkpoint) => {
                note!(
                    "podResources: {} is missing, so the kubelet allocated nothing",
                    self.checkpoint.display()
                );
                return Ok(Allocation::default());
            }
            devices => devices?,
        };
        Ok(self.allocation(&devices)?)
    }

    /// Checks that the kubelet's checkpoint can be read. Reports a missing file only on standard
    /// error: the kubelet writes it when the first device plugin registers, and that plugin may be
    /// a pod, which the kubelet does not start while the node's network is not ready.
    ///
    /// # Errors
    /// The file exists and cannot be read, or is not a checkpoint.
    pub(crate) fn expect_readable(&self) -> anyhow::Result<()> {
        match checkpoint::read(&self.checkpoint, "") {
            Err(error) if is_missing(&error) => {
                note!("{error:#}");
                Ok(())
            }
            read => read.map(|_| ()),
        }
    }

    /// Returns the rates that a pod's devices give it. `devices` maps the name of a resource to the
    /// number of the pod's devices. Ignores resources that `podResources` excludes, and those whose
    /// names contain no bandwidth.
    fn allocation(&self, devices: &BTreeMap<String, u64>) -> Result<Allocation, Error> {
        let counts = |name: &String| self.names.as_ref().is_none_or(|it| it.contains(name));
        let mut allocation = Allocation::default();
        let mut named = BTreeMap::new();
        for (name, count) in devices.iter().filter(|(name, _)| counts(name)) {
            let Some(resource) = Resource::parse(name)? else {
                continue;
            };
            let refused = |reason| Error::invalid(KEY, format!("{name}: {reason}"));
            let direction = resource.direction;
            if let Some(other) = named.insert(direction, name) {
                let word = direction.word();
                return Err(refused(format!(
                    "the pod has devices of {other}, too; one pod can have only one resource of {word}"
                )));
            }
            let megabits = resource.megabits.saturating_mul(*count);
            let bits = megabits.saturating_mul(MEGA);
            let rate = BitsPerSecond::try_from(bits).map_err(|it| refused(it.to_string()))?;
            allocation.insert(direction, rate);
        }
        Ok(allocation)
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|it| it.kind() == ErrorKind::NotFound)
}

/// Returns whether a process accepts connections on the kubelet's socket, which is in the directory
/// of the checkpoint. Does not wait for it.
fn kubelet_runs_beside(checkpoint: &Path) -> bool {
    let connected = || {
        let address = UnixAddr::new(&checkpoint.with_file_name("kubelet.sock"))?;
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let own = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(own.as_raw_fd(), &address)
    };
    connected().is_ok()
}

/// Returns the texts of `values` if each of them is a full name of the form [`FORM`].
///
/// # Errors
/// Code 7: a name has another form, or the number in it is out of range.
fn listed(values: &[Value]) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let name = value.as_str().unwrap_or_default();
        if Resource::parse(name)?.is_none() {
            let reason = format!("{value} is not of the form {FORM}");
            return Err(Error::invalid(format!("{KEY}[{index}]"), reason));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

const WANTED: &str = "expected true, false or a list of names of resources";

const DEFAULT_CHECKPOINT: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

const MEGA: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Direction;

    fn parse(raw: &Value, priority: Priority) -> Result<Option<PodResources>, Error> {
        PodResources::parse(&cni::json::read(raw, "")?.value, priority)
    }

    fn resources(raw: &Value) -> PodResources {
        parse(raw, Priority::Lower).unwrap().unwrap()
    }

    fn allocation(raw: &Value, devices: &[(&str, u64)]) -> Result<[Option<u64>; 2], Error> {
        let devices = devices
            .iter()
            .map(|(name, count)| (name.to_string(), *count));
        let allocation = resources(raw).allocation(&devices.collect())?;
        let rates = [Direction::Ingress, Direction::Egress].map(|it| allocation.get(&it));
        Ok(rates.map(|rate| rate.map(|it| it.bytes() * 8)))
    }

    #[test]
    fn nothing_is_read_without_resources() {
        for raw in [
            json!({}),
            json!({"podResources": false}),
            json!({"podResources": null}),
            json!({"podResources": []}),
        ] {
            assert_eq!(parse(&raw, Priority::Lower).unwrap(), None, "{raw}");
        }
    }

    #[test]
    fn keys_that_make_no_sense_are_refused() {
        for (raw, start) in [
            (
                json!({"podResources": "all"}),
                "podResources: expected true, false or a list",
            ),
            (
                json!({"podResources": ["a/egress-1mbit", "a/gpu"]}),
                "podResources[1]: \"a/gpu\" is not",
            ),
            (
                json!({"podResources": ["a/egress-0mbit"]}),
                "podResources: ",
            ),
            (json!({"podResources": [true]}), "podResources[0]: "),
            (
                json!({"podResources": true, "kubeletCheckpoint": "checkpoint"}),
                "kubeletCheckpoint: ",
            ),
        ] {
            let error = parse(&raw, Priority::Lower).unwrap_err();
            let told = error.to_string();
            assert!(error.code() == 7 && told.starts_with(start), "{told}");
        }
    }

    #[test]
    fn devices_of_counted_resources_add_up() {
        let devices = [
            ("a.org/ingress-10mbit", 2),
            ("a.org/gpu", 1),
            ("b.org/egress-5mbit", 3),
        ];
        let (ingress, egress) = (Some(20_000_000), Some(15_000_000));
        let all = json!({"podResources": true});
        assert_eq!(allocation(&all, &devices).unwrap(), [ingress, egress]);
        let one = json!({"podResources": ["a.org/ingress-10mbit", "b.org/egress-10mbit"]});
        assert_eq!(allocation(&one, &devices).unwrap(), [ingress, None]);
    }

    #[test]
    fn two_resources_of_a_direction_and_too_much_are_refused() {
        let all = json!({"podResources": true});
        for devices in [
            [("a/egress-10mbit", 1), ("a/egress-1mbit", 1)],
            [("a/egress-10mbit", 1), ("b/egress-10mbit", 1)],
            [("a/egress-0mbit", 1), ("a/ingress-1mbit", 1)],
            [("a/egress-100000mbit", 10_001), ("a/ingress-1mbit", 1)],
        ] {
            let error = allocation(&all, &devices).unwrap_err();
            assert_eq!(error.code(), 7, "{error}");
            assert!(error.to_string().contains("a/egress-"), "{error}");
        }
        let one = json!({"podResources": ["a/egress-10mbit"]});
        let devices = [("a/egress-10mbit", 1), ("b/egress-10mbit", 1)];
        assert_eq!(
            allocation(&one, &devices).unwrap(),
            [None, Some(10_000_000)]
        );
    }

    #[test]
    fn pod_gets_the_lower_rate_and_replaces_the_operators() {
        let rate = |bits: u64| BitsPerSecond::try_from(bits).unwrap();
        let asked = |bits| Asked {
            rate: rate(bits),
            burst: 64_000,
            burst_key: Some("ingressBurst".to_owned()),
            within: None,
        };
        let limit = |priority, bits: Option<u64>, allocated: u64| {
            let raw = json!({"podResources": true});
            let resources = parse(&raw, priority).unwrap().unwrap();
            resources.limit(bits.map(asked), rate(allocated))
        };
        let derived = |bits| Asked {
            rate: rate(bits),
            burst: 0,
            burst_key: None,
            within: None,
        };
        for priority in [Priority::Lower, Priority::Allocated] {
            assert_eq!(limit(priority, None, 80), derived(80));
            assert_eq!(limit(priority, Some(800), 80), derived(80));
        }
        for requested in [8, 80] {
            let within = asked(requested).within(derived(80));
            assert_eq!(limit(Priority::Lower, Some(requested), 80), within);
        }
        assert_eq!(limit(Priority::Allocated, Some(8), 80), derived(80));
    }

    #[test]
    fn default_burst_is_the_burst_of_an_allocation() {
        let resources = resources(&json!({"podResources": true, "defaultBurst": 64_000}));
        let limit = resources.limit(None, BitsPerSecond::try_from(8).unwrap());
        assert_eq!(limit.burst_key.as_deref(), Some("defaultBurst"));
        assert_eq!(limit.burst, 64_000);
    }

    #[test]
    fn a_wish_has_its_own_burst_up_to_that_of_the_devices() {
        let rate = BitsPerSecond::try_from(10_000_000).unwrap();
        let requested = |burst| Asked {
            rate,
            burst,
            burst_key: Some("egressBurst".to_owned()),
            within: None,
        };
        let allocated = BitsPerSecond::try_from(20_000_000).unwrap();
        for (default, burst, bytes) in [
            (0, 160_000, 20_000),
            (0, 8_000_000_000, 125_000),
            (400_000, 8_000_000_000, 50_000),
        ] {
            let raw = json!({"podResources": true, "defaultBurst": default});
            let resources = parse(&raw, Priority::Lower).unwrap().unwrap();
            let limit = resources.limit(Some(requested(burst)), allocated);
            let limit = limit.limit(1500).unwrap();
            assert_eq!((limit.rate, limit.burst.bytes()), (rate, bytes));
        }
    }
}
