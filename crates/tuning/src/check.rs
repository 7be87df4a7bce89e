//! CHECK: compares the sandbox with the configuration.

use anyhow::ensure;
use cni::{CheckRequest, Error};
use netlink::Connection;
use netns::{Netns, Sysctl};
use serde_json::{Value, json};

use crate::{Config, Settings};

/// Compares the sandbox's sysctls and interface with the configuration. Also accepts a MAC or an
/// MTU that `prevResult` reports, because a later plugin may have set it.
///
/// # Errors
/// - The sandbox or its interface does not exist.
/// - The sandbox differs from the configuration. One error names all differences.
pub(crate) fn check(request: &CheckRequest) -> anyhow::Result<()> {
    let config = Config::parse(&request.network, &request.args()?)?;
    let (result, interface) = (request.chained()?, &request.attachment.interface);
    cni::step("compare");
    let namespace = Netns::open(&request.netns).map_err(Error::sandbox)?;
    let connection = Connection::open_in(&namespace).map_err(Error::sandbox)?;
    let link = connection.link(interface.as_str())?;
    let reported = result.in_sandbox(interface).map(|(_, it)| Settings {
        mac: it.mac.as_ref().and_then(|mac| mac.parse().ok()),
        mtu: it.mtu,
        ..Settings::default()
    });
    let passing = [Settings::of(&link), reported.unwrap_or_default()];
    let mut differences = link_differences(&config.link, &passing);
    let sysctls = config.sysctls(interface);
    if !sysctls.is_empty() {
        let compare = || -> Result<Vec<_>, _> { sysctls.iter().map(sysctl_difference).collect() };
        let found = namespace.run(compare).map_err(Error::sandbox)??;
        differences.extend(found.into_iter().flatten());
    }
    let differences = differences.join("; ");
    ensure!(differences.is_empty(), "{interface}: {differences}");
    Ok(())
}

/// Returns a message for each setting in `wanted` whose current value is neither the wanted one nor
/// the one that `prevResult` reports. `passing` contains the current settings of the interface,
/// then the reported ones.
fn link_differences(wanted: &Settings, passing: &[Settings; 2]) -> Vec<String> {
    let [found, reported] = passing.each_ref().map(|it| json!(it));
    let wanted = json!(wanted);
    let wanted = wanted.as_object().into_iter().flatten();
    let is_missing = |(key, wanted): &(&String, &Value)| {
        let found = found.get(key);
        !wanted.is_null() && found != Some(wanted) && found != reported.get(key)
    };
    let word = |key| found.get(key).cloned().unwrap_or_default();
    let missing = wanted.filter(is_missing);
    missing
        .map(|(key, wanted)| format!("{key} is {}, not {wanted}", word(key)))
        .collect()
}

/// Returns a message if the sysctl has another value than configured; `None` if it has this value.
/// Compares word by word, because the kernel separates words by tabs and the configuration may use
/// spaces.
fn sysctl_difference((sysctl, wanted): &(Sysctl, &str)) -> Result<Option<String>, netns::Error> {
    let found = sysctl.read()?;
    let is_same = found.split_whitespace().eq(wanted.split_whitespace());
    Ok((!is_same).then(|| format!("{} is {found:?}, not {wanted:?}", sysctl.key())))
}
