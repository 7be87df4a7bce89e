//! Finds missing kernel features, by trying in a temporary network namespace what the plugins do.
//! Reads the kernel parameters (sysctls) on which the network of pods depends.

use std::collections::{BTreeMap, BTreeSet};

use attach::BRIDGE_NF_CALL;
use facts::MissingFeature;
use netns::{Netns, Sysctl};
use rustix::fs::{StatVfsMountFlags, statvfs};

use super::lookup::elements;
use super::plugins::PLUGINS;

/// Returns the features that plugins may need and the kernel lacks.
///
/// # Errors
/// The kernel refuses to create the temporary namespace or a socket in it, to look up a link, or to
/// create a qdisc or filter for a reason other than a missing module.
pub(super) fn missing_features() -> anyhow::Result<Vec<MissingFeature>> {
    Netns::run_in_new(|| {
        let mut missing = Vec::<MissingFeature>::new();
        for plugin in PLUGINS {
            for mut feature in (plugin.missing_features)()? {
                feature.plugins.push(plugin.name);
                let is_same = |it: &&mut MissingFeature| {
                    (&it.reason, it.need) == (&feature.reason, feature.need)
                };
                match missing.iter_mut().find(is_same) {
                    Some(known) => known.plugins.extend(feature.plugins),
                    None => missing.push(feature),
                }
            }
        }
        missing.extend(tables()?);
        Ok(missing)
    })?
}

/// Tries to make the plugins' tables in `nf_tables`. Returns the missing features, each once even
/// if the kernel does not support the table in any of its families.
fn tables() -> anyhow::Result<Vec<MissingFeature>> {
    let connection = nft::Connection::open()?;
    let missing = elements().into_iter().filter_map(|(plugins, elements)| {
        let tables = (elements.tables)();
        let error = tables.iter().find_map(|it| connection.dry_run(it).err())?;
        Some(MissingFeature {
            modules: error.modules(),
            reason: super::message(error),
            plugins,
            need: elements.need,
        })
    });
    Ok(missing.collect())
}

/// Returns the values of these parameters by name: forwarding, `route_localnet` and
/// `bridge-nf-call-*` of the node, IPv4 forwarding of each of `links`, and `rp_filter`. Omits
/// parameters that the kernel lacks.
pub(super) fn sysctls(links: &BTreeSet<&str>) -> BTreeMap<String, String> {
    let ipv4 = Sysctl::new(&["net", "ipv4", "ip_forward"]);
    let ipv6 = Sysctl::ipv6("all", "forwarding");
    let localnet = Sysctl::ipv4("all", "route_localnet");
    let call = BRIDGE_NF_CALL.map(|it| Sysctl::new(&["net", "bridge", it]));
    let of_links = links.iter().map(|it| Sysctl::ipv4(it, "forwarding"));
    let filters = links.iter().chain([&"all"]);
    let filters = filters.map(|it| Sysctl::ipv4(it, "rp_filter"));
    let all = [ipv4, ipv6, localnet].into_iter();
    let all = all.chain(call).chain(of_links).chain(filters);
    all.filter_map(|it| Some((it.key(), it.read().ok()?)))
        .collect()
}

/// Returns whether `/proc/sys` is mounted read-only.
pub(super) fn are_sysctls_read_only() -> bool {
    statvfs("/proc/sys").is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::RDONLY))
}
