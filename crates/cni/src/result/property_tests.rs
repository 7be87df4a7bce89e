//! Property tests: any result is written in any version and read again.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::SpecVersion;

fn address() -> impl Strategy<Value = IpNetwork> {
    let v4 = (any::<[u8; 4]>(), 0u8..=32);
    let v4 = v4.prop_map(|(ip, prefix)| IpNetwork::new(ip.into(), prefix));
    let v6 = (any::<[u8; 16]>(), 0u8..=128);
    let v6 = v6.prop_map(|(ip, prefix)| IpNetwork::new(ip.into(), prefix));
    prop_oneof![v4, v6].prop_map(Result::unwrap)
}

fn interface() -> impl Strategy<Value = Value> {
    let text = || of("[a-z0-9:/.]{1,20}");
    let texts = ("[a-z]{1,15}", text(), text(), text(), text());
    (texts, of(any::<u32>())).prop_map(|((name, mac, sandbox, socket, pci), mtu)| {
        json!({
            "name": name, "mac": mac, "mtu": mtu,
            "sandbox": sandbox, "socketPath": socket, "pciID": pci,
        })
    })
}

fn route() -> impl Strategy<Value = Value> {
    let number = || of(any::<u32>());
    let numbers = (number(), number(), number(), number(), of(any::<u8>()));
    let parts = (address(), of(any::<IpAddr>()), numbers);
    parts.prop_map(|(dst, gw, (mtu, advmss, priority, table, scope))| {
        json!({
            "dst": dst, "gw": gw, "mtu": mtu, "advmss": advmss,
            "priority": priority, "table": table, "scope": scope,
        })
    })
}

fn dns() -> impl Strategy<Value = Value> {
    let words = || vec("[a-z0-9.:]{1,20}", 0..3);
    let parts = (words(), of("[a-z.]{1,20}"), words(), words());
    parts.prop_map(|(servers, domain, search, options)| {
        json!({"nameservers": servers, "domain": domain, "search": search, "options": options})
    })
}

fn ip() -> impl Strategy<Value = Value> {
    let parts = (address(), of(any::<IpAddr>()), of(0usize..4));
    parts.prop_map(|(address, gateway, interface)| {
        json!({"address": address, "gateway": gateway, "interface": interface})
    })
}

/// Generates results with all keys except unknown ones.
fn result() -> impl Strategy<Value = AddResult> {
    let lists = (vec(interface(), 0..4), vec(ip(), 0..5), vec(route(), 0..4));
    (lists, dns()).prop_map(|((interfaces, ips, routes), dns)| {
        let value = json!({"interfaces": interfaces, "ips": ips, "routes": routes, "dns": dns});
        read(value, SpecVersion::CURRENT, "result").unwrap()
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
    let is_v4 = |ip: &IpConfig| ip.address.is_ipv4();
    let (v4, v6): (Vec<_>, Vec<_>) = result.ips.into_iter().partition(is_v4);
    let mut held = AddResult {
        dns: result.dns,
        ..AddResult::default()
    };
    for ip in [v4, v6]
        .into_iter()
        .filter_map(|ips| ips.into_iter().next())
    {
        // A result of 0.1.0 or 0.2.0 cannot contain a route of a family without an address.
        let of_family = |it: &&Route| it.dst.is_ipv4() == ip.address.is_ipv4();
        let routes = result.routes.iter().filter(of_family).cloned();
        held.routes.extend(routes);
        held.ips.push(IpConfig {
            interface: None,
            ..ip
        });
    }
    held
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
