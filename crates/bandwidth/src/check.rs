//! CHECK: compares the kernel's state with the state that ADD would create.

use attach::Differences;
use cni::CheckRequest;
use netlink::{Connection, Link};
use tc::{LinkEgress, LinkIngress, Traffic};

use crate::asked::Asked;
use crate::backstop::Backstop;
use crate::config::Config;
use crate::{host_link, ifb};

/// Compares rates, bursts, queue lengths, the redirection to the ifb and the backstop.
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
    let check = Check {
        request,
        traffic: &config.traffic,
        host: &host,
        host_link: &host_link,
    };
    let mut differences = Differences::default();
    if let Some(asked) = &config.ingress {
        differences.extend(check.limit(&host_link, asked, check.traffic)?);
    }
    if let Some(asked) = &config.egress {
        differences.extend(check.egress(asked)?);
    }
    differences.report(&request.attachment)
}

struct Check<'a> {
    request: &'a CheckRequest,
    traffic: &'a Traffic,
    host: &'a Connection,
    host_link: &'a Link,
}

impl Check<'_> {
    fn egress(&self, asked: &Asked) -> anyhow::Result<Vec<String>> {
        let attachment = &self.request.attachment;
        let Some(ifb) = ifb::find_behind(self.host_link, self.host, attachment)? else {
            return Ok(vec!["its ifb is gone".to_owned()]);
        };
        let mut differences = Vec::from_iter(self.limit(&ifb, asked, &Traffic::All)?);
        let link_ingress = LinkIngress::new(self.host, self.host_link);
        differences.extend(link_ingress.difference(&ifb, self.traffic)?);
        if !ifb.is_up {
            differences.push(format!("{} is down", ifb.name));
        }
        let mtu = self.host_link.mtu;
        if ifb.mtu != mtu {
            let (name, host_name) = (&ifb.name, &self.host_link.name);
            differences.push(format!("{name} has MTU {}, {host_name} has {mtu}", ifb.mtu));
        }
        differences.extend(self.backstop(&ifb, asked)?);
        Ok(differences)
    }

    /// Compares the backstop. Returns no difference if the reference created the ifb, because the
    /// reference creates no backstop.
    fn backstop(&self, ifb: &Link, asked: &Asked) -> anyhow::Result<Vec<String>> {
        let owner = self.request.attachment.owner();
        if ifb.alias.as_ref() != Some(&owner) {
            return Ok(Vec::new());
        }
        let limit = asked.limit(self.host_link.mtu)?;
        let backstop = Backstop::of(&limit, self.traffic, self.host_link, &owner);
        let mut differences = backstop.map_or(Ok(Vec::new()), |it| it.differences())?;
        if let Some(last) = differences.last_mut() {
            last.push_str(" (`cnitool reload` puts it back)");
        }
        Ok(differences)
    }

    fn limit(
        &self,
        link: &Link,
        asked: &Asked,
        traffic: &Traffic,
    ) -> anyhow::Result<Option<String>> {
        let link_egress = LinkEgress::new(self.host, link);
        let limit = asked.limit(self.host_link.mtu)?;
        let difference = link_egress.difference(&limit, traffic)?;
        // A limit that the reference set for the same configuration is not a difference.
        let bits = asked.burst;
        let is_references = difference.is_some()
            && *traffic == Traffic::All
            && link_egress.is_of_reference(asked.rate, bits)?;
        Ok(difference.filter(|_| !is_references))
    }
}
