//! The configuration: the `ipam` section and the runtime's arguments.

use std::collections::BTreeSet;

use cni::keys::{self, KNOWN_ARGS};
use cni::result::{Dns, IpConfig, Route};
use cni::{CniArgs, Error, Network, note};
use ipnetwork::IpNetwork;

use crate::raw::{RawAddress, RawConfig};

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Addresses of the container, each with its gateway if it has one.
    pub ips: Vec<IpConfig>,
    /// Routes for the result. The plugin that calls `static` creates them in the container.
    pub routes: Vec<Route>,
    /// DNS settings for the result.
    pub dns: Dns,
}

impl Config {
    /// Reads the `ipam` section, and the addresses that the runtime passes in `CNI_ARGS`,
    /// `runtimeConfig.ips` or `args.cni.ips`.
    ///
    /// # Errors
    /// - Code 4: `CNI_ARGS` has an unknown key, and `IgnoreUnknown` does not allow this.
    /// - Code 7: a value is invalid; the error names its key.
    pub fn parse(network: &Network, args: &CniArgs) -> Result<Self, Error> {
        args.expect_only(KNOWN_ARGS)?;
        let ipam: RawConfig = network.ipam()?;
        let of_args = of_args(args)?;
        let mut ips = replacement(network)?;
        if ips.is_empty() {
            ips = [configured(&ipam.addresses)?, of_args].concat();
        }
        let addresses: Vec<_> = ips.iter().map(|it| it.address).collect();
        let key = "ipam.addresses";
        keys::expect_one_a_family(network.version, &addresses, key, "addresses")?;
        Ok(Self {
            ips,
            routes: keys::routes(&ipam.routes)?,
            dns: keys::dns(ipam.dns).unwrap_or_default(),
        })
    }
}

fn configured(raw: &[RawAddress]) -> Result<Vec<IpConfig>, Error> {
    let parse = |(index, raw): (usize, &RawAddress)| {
        let at = format!("ipam.addresses[{index}]");
        Ok(IpConfig {
            gateway: keys::address(&raw.gateway, &format!("{at}.gateway"))?,
            ..ip(&raw.address, &format!("{at}.address"))?
        })
    };
    raw.iter().enumerate().map(parse).collect()
}

/// Returns the addresses in `CNI_ARGS`. `IP` and `GATEWAY` are lists separated by commas. A gateway
/// applies to each address of `IP` whose network contains the gateway. A message on standard error
/// names each gateway that none of these networks contains.
fn of_args(args: &CniArgs) -> Result<Vec<IpConfig>, Error> {
    let mut ips = words(args, "IP")
        .map(|text| ip(text, "CNI_ARGS IP"))
        .collect::<Result<Vec<_>, _>>()?;
    for text in words(args, "GATEWAY") {
        let gateway = keys::parsed(text, "CNI_ARGS GATEWAY")?;
        let mut near = ips.iter_mut().filter(|it| it.address.contains(gateway));
        if near.by_ref().map(|it| it.gateway = Some(gateway)).count() == 0 {
            note!("CNI_ARGS GATEWAY {gateway} is ignored: no address of IP is in its network");
        }
    }
    Ok(ips)
}

fn words<'a>(args: &'a CniArgs, key: &str) -> impl Iterator<Item = &'a str> {
    let list = args.value(key).filter(|list| !list.is_empty());
    list.into_iter()
        .flat_map(|list| list.split(','))
        .map(str::trim)
}

/// Returns the addresses that replace those in the `ipam` section and in `CNI_ARGS`:
/// `runtimeConfig.ips` or, if that is empty, `args.cni.ips`. If both are empty, returns none.
fn replacement(network: &Network) -> Result<Vec<IpConfig>, Error> {
    let mut sources = network.asked_ips()?.into_iter();
    let given = sources.find(|(_, ips)| !ips.is_empty());
    let (key, texts) = given.unwrap_or_default();
    let texts = texts.iter().enumerate();
    let ips = texts.map(|(index, text)| ip(text, &format!("{key}[{index}]")));
    ips.collect()
}

fn ip(text: &str, key: &str) -> Result<IpConfig, Error> {
    let address = keys::parsed(text, key)?;
    let problem = if text.contains('/') {
        unusable(address).map(|what| format!("is {what}"))
    } else {
        Some("has no prefix length, as in 10.1.0.2/24".to_owned())
    };
    match problem {
        Some(problem) => Err(Error::invalid(key, format!("{text:?} {problem}"))),
        None => Ok(IpConfig::of(address)),
    }
}

/// Returns a message for each address that `addresses` has twice. The interface plugins of this suite
/// refuse such a result.
pub fn warnings(ipam: &RawConfig) -> Vec<String> {
    let addresses = ipam.addresses.iter();
    let addresses = addresses.filter_map(|it| Some(it.address.parse::<IpNetwork>().ok()?.ip()));
    let mut seen = BTreeSet::new();
    let again: BTreeSet<_> = addresses.filter(|it| !seen.insert(*it)).collect();
    let message = |address| format!("ipam.addresses has {address} twice");
    again.into_iter().map(message).collect()
}

/// Returns what `address` is if no interface of a container can use it: if it is unspecified,
/// multicast or loopback, or the first address of a network with hosts, or the broadcast address of
/// an IPv4 network. Returns `None` for all other addresses.
fn unusable(address: IpNetwork) -> Option<&'static str> {
    let ip = address.ip();
    let point_to_point = if ip.is_ipv4() { 31 } else { 127 };
    let has_network = address.prefix() < point_to_point;
    let kinds = [
        (ip.is_unspecified(), "the unspecified address"),
        (ip.is_multicast(), "a multicast address"),
        (ip.is_loopback(), "a loopback address"),
        (
            has_network && ip == address.network(),
            "the address of the network itself",
        ),
        (
            has_network && ip.is_ipv4() && ip == address.broadcast(),
            "the broadcast address of the network",
        ),
    ];
    let mut kinds = kinds.into_iter();
    kinds.find_map(|(is_it, what)| is_it.then_some(what))
}

#[cfg(test)]
mod tests;
