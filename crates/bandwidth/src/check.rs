//! CHECK compares the limits with those that ADD would set. STATUS reports missing kernel features,
//! doubtful rates, and a checkpoint of the kubelet (its list of allocated devices) that is missing or
//! unreadable.

use attach::Differences;
use cni::{CheckRequest, Error, StatusRequest, note};
use netlink::Connection;
use netns::Netns;
use tc::{End, LinkEgress, Traffic};

use crate::limiting::Limiting;
use crate::{Asked, Config, Direction, RawConfig, backstop};

/// Compares rates, bursts, queue lengths and the backstop (the second egress limit, in `nf_tables`)
/// with the configuration.
///
/// # Errors
/// - Code 7: `prevResult` is missing.
/// - Code 100: the attachment differs from the configuration. One error names all differences.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::of_attachment(request)?;
    request.chained()?;
    if config.limits.is_empty() {
        return Ok(());
    }
    let limiting = Limiting::of(request, &config.traffic)?;
    cni::step("compare");
    let mut differences = Differences::default();
    for (direction, asked) in &config.limits {
        differences.extend(limiting.differences(*direction, asked)?);
    }
    differences.report(&request.attachment)
}

impl Limiting<'_> {
    /// Compares the limit of a direction with `asked`. If the Go plugin limited what the sandbox sends,
    /// compares its ifb; it has no backstop.
    fn differences(&self, direction: Direction, asked: &Asked) -> anyhow::Result<Vec<String>> {
        let is_egress = direction == Direction::Egress;
        if is_egress && let Some(ifb) = self.find_ifb()? {
            let queue = LinkEgress::new(&self.pair.host, &ifb, End::Host);
            let difference = self.difference(queue, asked, &Traffic::All)?;
            let is_down = (!ifb.is_up).then(|| format!("its ifb {} is down", ifb.name));
            return Ok(difference.into_iter().chain(is_down).collect());
        }
        let place = self.pair.place(direction);
        let mut differences = Vec::from_iter(self.difference(place, asked, self.traffic)?);
        if is_egress {
            differences.extend(self.backstop(&self.limit(asked)?)?.differences()?);
        }
        Ok(differences)
    }

    /// Returns a message if the limit at `end` is not the limit `asked` for `traffic`. Returns
    /// `None` if both are the same, or if the Go plugin set the limit for the same configuration.
    fn difference(
        &self,
        end: LinkEgress<'_>,
        asked: &Asked,
        traffic: &Traffic,
    ) -> anyhow::Result<Option<String>> {
        let limit = self.limit(asked)?;
        let difference = end.difference(&limit, traffic)?;
        // A limit that the Go plugin set for the same configuration counts as equal.
        let is_references = difference.is_some()
            && *traffic == Traffic::All
            && end.is_of_reference(asked.rate, asked.burst)?;
        Ok(difference.filter(|_| !is_references))
    }
}

/// Logs doubtful rates and missing kernel features on standard error. STATUS succeeds without these
/// features, because sandboxes without limits do not need them.
///
/// # Errors
/// - The configuration is invalid.
/// - Code 50: the kubelet's checkpoint exists and cannot be read, so the ADD of every pod would fail.
pub(crate) fn status(request: &StatusRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network)?;
    warnings(&request.network.quiet_config()?)
        .iter()
        .for_each(note);
    if let Some(resources) = &config.pod_resources {
        let readable = resources.expect_readable();
        readable.map_err(Error::unavailable)?;
    }
    let missing = Netns::run_in_new(|| {
        let modules = tc::missing(&Connection::open()?)?.into_iter();
        let missing = modules.map(tc::lacks).chain(backstop::missing()?);
        Ok::<_, anyhow::Error>(missing.collect::<Vec<_>>())
    });
    match missing.unwrap_or_else(|error| Err(error.into())) {
        Ok(missing) => missing.iter().for_each(note),
        Err(error) => note!("cannot try whether rates can be limited: {error:#}"),
    }
    Ok(())
}

/// Returns a message for each rate in the plugin's own keys that is so low that a packet takes longer
/// than a second. Its author probably meant another unit than bit/s.
pub fn warnings(own: &RawConfig) -> Vec<String> {
    let rates = [
        ("ingressRate", own.ingress_rate),
        ("egressRate", own.egress_rate),
    ];
    let low = rates.into_iter().filter_map(|(key, rate)| {
        let rate = rate.filter(|it| (1..PACKET_BITS).contains(it))?;
        let seconds = PACKET_BITS / rate;
        Some(format!(
            "{key} is {rate} bit/s: a packet of 1500 bytes takes {seconds} s"
        ))
    });
    low.collect()
}

/// Size of a packet of 1500 bytes in bits.
const PACKET_BITS: u64 = 1500 * 8;
