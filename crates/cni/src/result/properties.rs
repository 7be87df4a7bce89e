//! Properties of every result in every version.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use serde_json::Map;

use super::*;
use crate::version::SpecVersion;

fn address() -> impl Strategy<Value = IpNetwork> {
    let v4 = (any::<[u8; 4]>(), 0u8..=32);
    let v4 = v4.prop_map(|(ip, prefix)| IpNetwork::new(ip.into(), prefix));
    let v6 = (any::<[u8; 16]>(), 0u8..=128);
    let v6 = v6.prop_map(|(ip, prefix)| IpNetwork::new(ip.into(), prefix));
    prop_oneof![v4, v6].prop_map(Result::unwrap)
}

fn interface() -> impl Strategy<Value = Interface> {
    let text = || of("[a-z0-9:/.]{1,20}");
    let parts = (
        "[a-z]{1,15}",
        text(),
        of(any::<u32>()),
        text(),
        text(),
        text(),
    );
    parts.prop_map(|(name, mac, mtu, sandbox, socket_path, pci_id)| Interface {
        name,
        mac,
        mtu,
        sandbox,
        socket_path,
        pci_id,
        extra: Map::new(),
    })
}

fn route() -> impl Strategy<Value = Route> {
    let number = || of(any::<u32>());
    let numbers = (number(), number(), number(), number(), of(any::<u8>()));
    let parts = (address(), of(any::<IpAddr>()), numbers);
    parts.prop_map(|(dst, gw, (mtu, advmss, priority, table, scope))| Route {
        gw,
        mtu,
        advmss,
        priority,
        table,
        scope,
        ..Route::to(dst)
    })
}

fn dns() -> impl Strategy<Value = Dns> {
    let words = || vec("[a-z0-9.:]{1,20}", 0..3);
    let parts = (words(), of("[a-z.]{1,20}"), words(), words());
    parts.prop_map(|(nameservers, domain, search, options)| Dns {
        nameservers,
        domain,
        search,
        options,
        extra: Map::new(),
    })
}

/// Generates results with all keys except unknown ones.
fn result() -> impl Strategy<Value = AddResult> {
    let ip = (address(), of(any::<IpAddr>()), of(0usize..4));
    let parts = (
        vec(interface(), 0..4),
        vec(ip, 0..5),
        vec(route(), 0..4),
        dns(),
    );
    parts.prop_map(|(interfaces, ips, routes, dns)| AddResult {
        ips: ips
            .into_iter()
            .map(|(address, gateway, interface)| IpConfig {
                gateway,
                interface: interface.filter(|it| *it < interfaces.len()),
                ..IpConfig::of(address)
            })
            .collect(),
        interfaces,
        routes,
        dns,
        extra: Map::new(),
    })
}

/// Returns the part of `result` that `version` can represent.
fn held(mut result: AddResult, version: SpecVersion) -> AddResult {
    if version >= SpecVersion::V1_1_0 {
        return result;
    }
    for interface in &mut result.interfaces {
        (interface.mtu, interface.socket_path, interface.pci_id) = (None, None, None);
    }
    if version >= SpecVersion::V0_3_0 {
        return result;
    }
    let first = |is_v4: bool| {
        let mut ips = result.ips.iter().cloned();
        ips.find(|ip| ip.address.is_ipv4() == is_v4)
    };
    let ips: Vec<_> = [first(true), first(false)].into_iter().flatten().collect();
    // A route without an address of its family is not representable.
    let routes = ips.iter().flat_map(|ip| {
        let of_family = |route: &&Route| route.dst.is_ipv4() == ip.address.is_ipv4();
        result.routes.iter().filter(of_family).cloned()
    });
    AddResult {
        routes: routes.collect(),
        ips: ips
            .into_iter()
            .map(|ip| IpConfig {
                interface: None,
                ..ip
            })
            .collect(),
        interfaces: Vec::new(),
        dns: result.dns,
        extra: Map::new(),
    }
}

fn there_and_back(result: &AddResult, version: SpecVersion) -> AddResult {
    read(result.to_json(version), version, "result").unwrap()
}

proptest! {
    #[test]
    fn an_older_form_keeps_all_that_it_can_hold(
        result in result(),
        version in prop::sample::select(SpecVersion::ALL),
    ) {
        prop_assert_eq!(there_and_back(&result, version), held(result, version));
    }

    #[test]
    fn a_newer_form_keeps_all_that_an_older_one_held(
        result in result(),
        old in prop::sample::select(SpecVersion::ALL),
        new in prop::sample::select(SpecVersion::ALL),
    ) {
        prop_assume!(old <= new);
        let result = there_and_back(&result, old);
        prop_assert_eq!(there_and_back(&result, new), result);
    }

    #[test]
    fn what_was_printed_is_printed_again(
        result in result(),
        version in prop::sample::select(SpecVersion::ALL),
    ) {
        let printed = result.to_json(version);
        prop_assert_eq!(there_and_back(&result, version).to_json(version), printed);
    }
}
