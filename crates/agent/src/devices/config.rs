//! The section `devices` of the configuration file.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use cni::InterfaceName;
use kubelet::device_plugin::KUBELET_SOCKET;
use serde::Deserialize;

use super::resource::{Direction, Kind, Resource};

/// The section `devices` of the configuration file, after all checks: the resources that the agent
/// offers to the kubelet.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "RawConfig")]
pub(crate) struct Config {
    /// The kubelet's directory, by default `/var/lib/kubelet`.
    pub kubelet_dir: PathBuf,
    /// The link whose capacity pods share; `None` for the link of the default route.
    pub uplink: Option<String>,
    /// The resources that the agent offers, at least one.
    pub offers: Vec<Offer>,
}

/// A resource, and the capacity that its devices share.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    /// The resource.
    pub resource: Resource,
    /// Capacity in Mbit/s that the devices share; `None` for the speed of the uplink. For
    /// [`Kind::Tun`], the number of devices.
    capacity: Option<u32>,
}

/// The section `devices` before the checks, as it is in the file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawConfig {
    domain: String,
    #[serde(default = "kubelet_dir")]
    kubelet_dir: PathBuf,
    uplink: Option<String>,
    ingress: Option<Rate>,
    egress: Option<Rate>,
    tun: Option<u32>,
}

/// Rate of each device of one direction, and the capacity that these devices share.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rate {
    unit_mbit: u32,
    capacity_mbit: Option<u32>,
}

impl Config {
    /// Returns the directory in which device plugins and the kubelet have their sockets.
    pub fn directory(&self) -> PathBuf {
        self.kubelet_dir.join("device-plugins")
    }

    /// Returns the socket on which the kubelet lists the devices of pods.
    pub fn pod_resources(&self) -> PathBuf {
        self.kubelet_dir.join("pod-resources/kubelet.sock")
    }

    /// Returns whether the agent offers bandwidth. The health of devices of bandwidth follows the
    /// uplink's carrier.
    pub fn needs_uplink(&self) -> bool {
        let mut offers = self.offers.iter();
        offers.any(|it| it.resource.kind != Kind::Tun)
    }

    /// Returns whether the number of devices of at least one resource depends on the uplink's
    /// speed.
    pub fn needs_speed(&self) -> bool {
        let mut offers = self.offers.iter();
        offers.any(|it| it.capacity.is_none())
    }

    /// Returns the number of devices of each resource if the uplink has this speed, in Mbit/s.
    ///
    /// # Errors
    /// The node would have more than [`MOST_DEVICES`] devices, or a resource would have none.
    pub fn counts(&self, speed: u32) -> anyhow::Result<Vec<u32>> {
        let counts = self.offers.iter();
        let counts = counts.map(|it| it.count(it.resource.kind.unit(), speed));
        let counts: Vec<_> = counts.collect();
        for (offer, count) in self.offers.iter().zip(&counts) {
            let (name, key) = (&offer.resource.name, offer.resource.kind);
            ensure!(
                *count > 0,
                "{key}: unitMbit of {name} is more than the speed of the uplink, {speed} Mbit/s"
            );
        }
        let total: u32 = counts.iter().fold(0, |sum, it| sum.saturating_add(*it));
        ensure!(
            total <= MOST_DEVICES,
            "{total} devices are more than {MOST_DEVICES}, the most of a node: set unitMbit to {} or more",
            self.smallest_unit(speed)
        );
        Ok(counts)
    }

    /// Returns the smallest `unitMbit` with which the node has at most [`MOST_DEVICES`] devices, if
    /// all directions have this unit.
    fn smallest_unit(&self, speed: u32) -> u32 {
        let total_of = |unit: u32| -> u32 {
            let counts = self.offers.iter().map(|it| it.count(unit, speed));
            counts.fold(0, u32::saturating_add)
        };
        let mut units = 1..MOST_MBIT;
        units
            .find(|unit| total_of(*unit) <= MOST_DEVICES)
            .unwrap_or(MOST_MBIT)
    }

    fn checked(raw: RawConfig) -> anyhow::Result<Self> {
        check_domain(&raw.domain)?;
        if let Some(uplink) = &raw.uplink {
            let name = uplink.parse::<InterfaceName>();
            ensure!(name.is_ok(), "uplink {uplink:?} is no name of a link");
        }
        let offers = raw.offers()?;
        ensure!(
            !offers.is_empty(),
            "none of the keys ingress, egress and tun is set"
        );
        check_directory(&raw.kubelet_dir, &offers)?;
        let config = Self {
            kubelet_dir: raw.kubelet_dir,
            uplink: raw.uplink,
            offers,
        };
        if !config.needs_speed() {
            config.counts(MOST_CAPACITY)?;
        }
        Ok(config)
    }
}

impl Offer {
    /// Returns the number of devices of `unit` Mbit/s that share the configured capacity or,
    /// without one, the uplink's `speed` in Mbit/s. For [`Kind::Tun`], returns the configured
    /// number.
    fn count(&self, unit: u32, speed: u32) -> u32 {
        let capacity = self.capacity.unwrap_or(speed.min(MOST_CAPACITY));
        match self.resource.kind {
            Kind::Rate(..) => capacity / unit.max(1),
            Kind::Tun => capacity,
        }
    }
}

impl TryFrom<RawConfig> for Config {
    type Error = String;

    fn try_from(raw: RawConfig) -> Result<Self, String> {
        Self::checked(raw).map_err(|it| format!("{it:#}"))
    }
}

impl RawConfig {
    fn offers(&self) -> anyhow::Result<Vec<Offer>> {
        let mut offers = Vec::new();
        for (direction, rate) in [
            (Direction::Ingress, self.ingress),
            (Direction::Egress, self.egress),
        ] {
            if let Some(rate) = rate {
                let offer = rate.offer(direction, &self.domain);
                offers.push(offer.with_context(|| direction.to_string())?);
            }
        }
        if let Some(count) = self.tun {
            let is_possible = (1..=MOST_TUN).contains(&count);
            ensure!(is_possible, "tun {count} is not from 1 to {MOST_TUN}");
            offers.push(Offer {
                resource: Resource::new(&self.domain, Kind::Tun),
                capacity: Some(count),
            });
        }
        Ok(offers)
    }
}

impl Rate {
    fn offer(self, direction: Direction, domain: &str) -> anyhow::Result<Offer> {
        let unit = self.unit_mbit;
        ensure!(
            (1..=MOST_MBIT).contains(&unit),
            "unitMbit {unit} is not from 1 to {MOST_MBIT}"
        );
        if let Some(capacity) = self.capacity_mbit {
            ensure!(
                (unit..=MOST_CAPACITY).contains(&capacity),
                "capacityMbit {capacity} is not from unitMbit, {unit}, to {MOST_CAPACITY}"
            );
        }
        Ok(Offer {
            resource: Resource::new(domain, Kind::Rate(direction, unit)),
            capacity: self.capacity_mbit,
        })
    }
}

/// Refuses a domain that the kubelet does not accept in the name of a resource
/// (`IsExtendedResourceName` in `pkg/apis/core/v1/helper/helpers.go` of Kubernetes).
fn check_domain(domain: &str) -> anyhow::Result<()> {
    let is_inner = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit();
    let is_label = |label: &str| {
        let ends = [label.bytes().next(), label.bytes().last()];
        label.len() <= 63
            && ends.into_iter().all(|it| it.is_some_and(is_inner))
            && label.bytes().all(|it| is_inner(it) || it == b'-')
    };
    ensure!(
        domain.len() <= LONGEST_DOMAIN && domain.split('.').all(is_label),
        "domain {domain:?} is no DNS name in lower case with up to {LONGEST_DOMAIN} characters"
    );
    ensure!(
        !domain.ends_with("kubernetes.io") && !domain.starts_with("requests."),
        "domain {domain:?} is a name of Kubernetes' own, and the kubelet refuses resources of it"
    );
    Ok(())
}

fn check_directory(kubelet_dir: &Path, offers: &[Offer]) -> anyhow::Result<()> {
    let shown = kubelet_dir.display();
    let is_absolute = kubelet_dir.is_absolute();
    ensure!(is_absolute, "kubeletDir {shown} is no absolute path");
    let names = offers.iter().map(|it| it.resource.socket_name().len());
    let longest = names.max().unwrap_or_default().max(KUBELET_SOCKET.len());
    let own = kubelet_dir.as_os_str().len() + "/device-plugins/".len();
    ensure!(
        own + longest <= LONGEST_PATH,
        "kubeletDir {shown} is too long: the path of a socket has up to {LONGEST_PATH} bytes"
    );
    Ok(())
}

fn kubelet_dir() -> PathBuf {
    PathBuf::from("/var/lib/kubelet")
}

/// The most devices that the agent offers on a node. The kubelet keeps all of them in memory and
/// compares them at each allocation.
const MOST_DEVICES: u32 = 10_000;

/// Maximum rate of one device, in Mbit/s. The plugin `bandwidth` accepts no higher rate in the name
/// of a resource.
const MOST_MBIT: u32 = 100_000;

/// Maximum capacity of one direction, in Mbit/s. The number of its devices is the capacity divided
/// by `unitMbit`. With the largest unit, [`MOST_MBIT`], a direction has at most 100 devices. So for
/// each capacity, a valid `unitMbit` exists with which the node stays below [`MOST_DEVICES`].
const MOST_CAPACITY: u32 = 10_000_000;

/// The most devices of [`Kind::Tun`].
const MOST_TUN: u32 = 1_000;

/// The longest domain, in characters. The kubelet puts `requests.` before a resource's name, and
/// accepts at most 253 characters before the slash.
const LONGEST_DOMAIN: usize = 253 - "requests.".len();

/// Maximum length of the path of a Unix socket in bytes, without the zero byte at its end.
const LONGEST_PATH: usize = 107;
