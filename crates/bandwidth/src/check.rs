//! CHECK compares the limits with those that ADD would set. STATUS reports missing kernel features,
//! doubtful rates, and a checkpoint of the kubelet (its list of allocated devices) that is missing or
//! unreadable.

use attach::Differences;
use cni::{CheckRequest, Error, StatusRequest, note};
use netlink::{Connection, Link};
use netns::Netns;
use tc::{LinkEgress, LinkIngress, Traffic};

use crate::limiting::Limiting;
use crate::{Asked, Config, RawConfig, backstop, host_link};

/// Compares rates, bursts, queue lengths, the redirection to the ifb, and the backstop (the second
/// egress limit, in `nf_tables`) with the configuration.
///
/// # Errors
/// - Code 7: `prevResult` is missing.
/// - Code 100: the attachment differs from the configuration. One error names all differences.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::of_attachment(request)?;
    request.chained()?;
    if config.is_idle() {
        return Ok(());
    }
    cni::step("compare");
    let host = Connection::open()?;
    let host_link = host_link::find(request, &host)?;
    let limiting = Limiting {
        request,
        host: &host,
        host_link: &host_link,
        traffic: &config.traffic,
    };
    let mut differences = Differences::default();
    if let Some(asked) = &config.ingress {
        differences.extend(limiting.difference(&host_link, asked, limiting.traffic)?);
    }
    if let Some(asked) = &config.egress {
        differences.extend(limiting.egress_differences(asked)?);
    }
    differences.report(&request.attachment)
}

impl Limiting<'_> {
    fn egress_differences(&self, asked: &Asked) -> anyhow::Result<Vec<String>> {
        let Some(ifb) = self.find_ifb()? else {
            return Ok(vec!["its ifb is gone".to_owned()]);
        };
        let mut differences = Vec::from_iter(self.difference(&ifb, asked, &Traffic::All)?);
        let link_ingress = LinkIngress::new(self.host, self.host_link);
        differences.extend(link_ingress.difference(&ifb, self.traffic)?);
        if !ifb.is_up {
            differences.push(format!("its ifb {} is down", ifb.name));
        }
        let mtu = self.host_link.mtu;
        if ifb.mtu != mtu {
            let (name, host_name) = (&ifb.name, &self.host_link.name);
            differences.push(format!("{name} has MTU {}, {host_name} has {mtu}", ifb.mtu));
        }
        differences.extend(self.backstop_differences(&ifb, asked)?);
        Ok(differences)
    }

    /// Returns a message for each difference between the backstop (second egress limit) in the
    /// kernel and the one that ADD would create for `asked`. Returns none if the Go plugin created
    /// the ifb, because the Go plugin creates no backstop.
    fn backstop_differences(&self, ifb: &Link, asked: &Asked) -> anyhow::Result<Vec<String>> {
        if ifb.alias != Some(self.request.attachment.owner()) {
            return Ok(Vec::new());
        }
        let backstop = self.backstop(&asked.limit(self.host_link.mtu)?);
        let mut differences = backstop.map_or(Ok(Vec::new()), |it| it.differences())?;
        if let Some(last) = differences.last_mut() {
            last.push_str(" (`cnitool reload` puts it back)");
        }
        Ok(differences)
    }

    /// Returns a message if the limit of `link` is not the limit `asked` for `traffic`. Returns
    /// `None` if both are the same, or if the Go plugin set the link's limit for the same
    /// configuration.
    fn difference(
        &self,
        link: &Link,
        asked: &Asked,
        traffic: &Traffic,
    ) -> anyhow::Result<Option<String>> {
        let link_egress = LinkEgress::new(self.host, link);
        let limit = asked.limit(self.host_link.mtu)?;
        let difference = link_egress.difference(&limit, traffic)?;
        // A limit that the Go plugin set for the same configuration counts as equal.
        let is_references = difference.is_some()
            && *traffic == Traffic::All
            && link_egress.is_of_reference(asked.rate, asked.burst)?;
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
    doubts(&request.network.quiet_config()?)
        .iter()
        .for_each(note);
    if let Some(resources) = &config.pod_resources {
        let readable = resources.expect_readable();
        readable.map_err(|error| Error::Unavailable(format!("{error:#}")))?;
    }
    let missing = Netns::run_in_new(|| {
        let modules = tc::missing(&Connection::open()?)?.into_iter();
        let missing = modules.map(tc::lacks).chain(backstop::missing()?);
        Ok::<_, anyhow::Error>(missing.collect::<Vec<_>>())
    });
    match missing.unwrap_or_else(|error| Err(error.into())) {
        Ok(missing) => missing.iter().for_each(note),
        Err(error) => note(format_args!(
            "cannot try whether rates can be limited: {error:#}"
        )),
    }
    Ok(())
}

/// Returns a message for each rate in the plugin's own keys that is so low that a packet takes longer
/// than a second. Its author probably meant another unit than bit/s.
pub fn doubts(own: &RawConfig) -> Vec<String> {
    let rates = [
        ("ingressRate", own.ingress_rate),
        ("egressRate", own.egress_rate),
    ];
    let rates = rates.iter().filter_map(|(key, rate)| Some((key, (*rate)?)));
    let low = rates.filter(|(_, rate)| (1..PACKET_BITS).contains(rate));
    let message = |(key, rate)| {
        let seconds = PACKET_BITS / rate;
        format!("{key} is {rate} bit/s: a packet of 1500 bytes takes {seconds} s")
    };
    low.map(message).collect()
}

/// Size of a packet of 1500 bytes in bits.
const PACKET_BITS: u64 = 1500 * 8;
