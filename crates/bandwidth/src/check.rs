//! CHECK: compares the state with that after ADD.

use anyhow::bail;
use cni::{CheckRequest, Error};
use netlink::{Connection, Link};
use netns::Netns;
use tc::{Limit, LinkEgress, LinkIngress, Traffic};

use crate::backstop::Backstop;
use crate::config::{Asked, Config};
use crate::plan::Plan;
use crate::{host_link, ifb};

/// Compares rates, bursts, queues, the redirection and the backstop.
///
/// # Errors
/// All differences in one error; code 7 without a `prevResult`.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network)?;
    request.chained()?;
    if config.is_idle() {
        return Ok(());
    }
    let namespace = Netns::open(&request.netns).map_err(Error::sandbox)?;
    cni::step("compare");
    let host = Connection::open()?;
    let host_link = host_link::find(request, &host, &namespace)?;
    let check = Check {
        request,
        plan: &Plan::new(&config, host_link.mtu)?,
        host: &host,
        host_link: &host_link,
    };
    let mut differences = Vec::new();
    if let Some(asked) = &config.ingress {
        differences.extend(check.ingress(asked)?);
    }
    if let Some(asked) = &config.egress {
        differences.extend(check.egress(asked)?);
    }
    if differences.is_empty() {
        return Ok(());
    }
    bail!(
        "{} is not as ADD left it: {}",
        request.attachment,
        differences.join("; ")
    )
}

struct Check<'a> {
    request: &'a CheckRequest,
    plan: &'a Plan,
    host: &'a Connection,
    host_link: &'a Link,
}

impl Check<'_> {
    fn ingress(&self, asked: &Asked) -> anyhow::Result<Vec<String>> {
        let traffic = &self.plan.traffic;
        self.limit(self.host_link, (self.plan.ingress.as_ref(), asked), traffic)
    }

    fn egress(&self, asked: &Asked) -> anyhow::Result<Vec<String>> {
        let attachment = &self.request.attachment;
        let Some(ifb) = ifb::find_behind(self.host_link, self.host, attachment)? else {
            return Ok(vec![format!("its ifb is gone")]);
        };
        let limit = (self.plan.egress.as_ref(), asked);
        let mut differences = self.limit(&ifb, limit, &Traffic::All)?;
        let link_ingress = LinkIngress::new(self.host, self.host_link);
        differences.extend(link_ingress.differences(&ifb, &self.plan.traffic)?);
        if !ifb.is_up {
            differences.push(format!("{} is down", ifb.name));
        }
        let mtu = self.host_link.mtu;
        if ifb.mtu != mtu {
            let name = &self.host_link.name;
            differences.push(format!(
                "{} has MTU {}, {name} has {mtu}",
                ifb.name, ifb.mtu
            ));
        }
        differences.extend(self.backstop(&ifb)?);
        Ok(differences)
    }

    /// Compares the backstop, unless the reference made the ifb: it has none.
    fn backstop(&self, ifb: &Link) -> anyhow::Result<Vec<String>> {
        let owner = self.request.attachment.owner();
        if ifb.alias.as_ref() != Some(&owner) {
            return Ok(Vec::new());
        }
        let backstop = Backstop::of(self.plan, self.host_link, &owner);
        let mut differences = backstop.map_or(Ok(Vec::new()), |it| it.differences())?;
        if let Some(last) = differences.last_mut() {
            last.push_str(" (`cnitool reload` puts it back)");
        }
        Ok(differences)
    }

    fn limit(
        &self,
        link: &Link,
        (limit, asked): (Option<&Limit>, &Asked),
        traffic: &Traffic,
    ) -> anyhow::Result<Vec<String>> {
        let link_egress = LinkEgress::new(self.host, link);
        let Some(limit) = limit else {
            return Ok(Vec::new());
        };
        let differences = link_egress.differences(limit, traffic)?;
        // Limits of the reference count as unchanged.
        let bits = asked.burst.bits();
        if differences.is_empty()
            || *traffic == Traffic::All && link_egress.is_of_reference(asked.rate, bits)?
        {
            return Ok(Vec::new());
        }
        Ok(differences)
    }
}
