//! Names of device-plugin resources whose devices stand for bandwidth: `DOMAIN/ingress-<N>mbit` and
//! `DOMAIN/egress-<N>mbit`. Each device that a pod has gives it N Mbit/s.

use cni::Error;
use serde::Deserialize;

/// A direction of traffic, from the pod's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// What the pod sends. It can do more harm, so it is limited first.
    Egress,
    /// What the pod receives.
    Ingress,
}

impl Direction {
    /// Both directions, in the order in which they are limited.
    pub const BOTH: [Self; 2] = [Self::Egress, Self::Ingress];

    /// Returns the direction as it stands in names of resources: `ingress` or `egress`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    /// Returns the direction with this [`Self::word`].
    pub(crate) fn of(word: &str) -> Option<Self> {
        Self::BOTH.into_iter().find(|it| it.word() == word)
    }
}

/// A device-plugin resource whose devices stand for bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resource {
    /// The limited direction.
    pub direction: Direction,
    /// Mbit/s of one device: 1 to 100,000.
    pub megabits: u64,
}

impl Resource {
    /// Parses the full name of a resource. Returns `None` if the name does not have the form
    /// [`FORM`], so the devices do not stand for bandwidth.
    ///
    /// # Errors
    /// Code 7: the name has this form, but its number is out of range.
    pub fn parse(name: &str) -> Result<Option<Self>, Error> {
        let Some((direction, digits)) = parts(name) else {
            return Ok(None);
        };
        let number = digits.parse().ok();
        let megabits = number.filter(|it| (1..=MOST_MEGABITS).contains(it));
        let megabits = megabits.ok_or_else(|| {
            let reason = format!("{name}: {digits} is not within 1 to {MOST_MEGABITS}");
            Error::invalid(KEY, reason)
        })?;
        Ok(Some(Self {
            direction,
            megabits,
        }))
    }
}

/// Returns the direction and the digits in the full name of a resource. Returns `None` if the name
/// does not have the form [`FORM`].
fn parts(name: &str) -> Option<(Direction, &str)> {
    let (domain, local) = name.split_once('/')?;
    let (word, rest) = local.split_once('-')?;
    let digits = rest.strip_suffix("mbit")?;
    let direction = Direction::of(word)?;
    let is_number = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
    (is_number && !domain.is_empty()).then_some((direction, digits))
}

/// The form of the full name of a resource with a bandwidth, for messages.
pub(crate) const FORM: &str = "DOMAIN/ingress-<N>mbit or DOMAIN/egress-<N>mbit";

/// The configuration key that selects the resources whose devices limit a pod, for messages.
pub(crate) const KEY: &str = "podResources";

/// Maximum Mbit/s of one device.
const MOST_MEGABITS: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_says_direction_and_rate() {
        for (name, direction, megabits) in [
            ("example.org/ingress-10mbit", Direction::Ingress, 10),
            ("cni.example.org/egress-1mbit", Direction::Egress, 1),
            ("a/egress-100000mbit", Direction::Egress, 100_000),
        ] {
            let resource = Resource {
                direction,
                megabits,
            };
            assert_eq!(Resource::parse(name).unwrap(), Some(resource));
        }
    }

    #[test]
    fn other_names_are_no_bandwidth() {
        for name in [
            "",
            "cpu",
            "egress-10mbit",
            "/egress-10mbit",
            "nvidia.com/gpu",
            "example.org/egress-mbit",
            "example.org/egress-+1mbit",
            "example.org/egress-1.5mbit",
            "example.org/egress-10gbit",
            "example.org/egress-10mbits",
            "example.org/Egress-10mbit",
            "example.org/x/egress-10mbit",
            "example.org/transgress-10mbit",
        ] {
            assert_eq!(Resource::parse(name).unwrap(), None, "{name}");
        }
    }

    #[test]
    fn rate_out_of_range_is_refused() {
        for digits in ["0", "100001", "18446744073709551616"] {
            let error = Resource::parse(&format!("a/egress-{digits}mbit")).unwrap_err();
            assert!(
                error.code() == 7 && error.to_string().contains(digits),
                "{error}"
            );
        }
    }
}
