use super::*;
use crate::config::Config;

fn ip(address: &str, gateway: Option<&str>) -> IpConfig {
    IpConfig {
        gateway: gateway.map(|gateway| gateway.parse().unwrap()),
        ..IpConfig::of(address.parse().unwrap())
    }
}

fn attachment() -> Attachment {
    Attachment {
        network: "pods".parse().unwrap(),
        container: "c1".parse().unwrap(),
        interface: "eth0".parse().unwrap(),
    }
}

fn plan(mode: Gateway, ips: Vec<IpConfig>, routes: Vec<Route>) -> Result<Plan, Error> {
    let config = Config {
        gateway: mode,
        ..Config::default()
    };
    let lease = AddResult {
        ips,
        routes,
        ..AddResult::default()
    };
    Plan::new(&config, &lease, 1500)
}

fn route(dst: &str, gw: Option<&str>) -> Route {
    Route {
        gw: gw.map(|gw| gw.parse().unwrap()),
        ..Route::to(dst.parse().unwrap())
    }
}

#[test]
fn gateway_is_the_first_address_where_the_lease_names_none() {
    let plan = plan(
        Gateway::Bridge,
        vec![ip("10.1.0.9/24", None), ip("fd00::9/64", None)],
        vec![],
    )
    .unwrap();
    assert_eq!(
        plan.gateways,
        [
            "10.1.0.1/24".parse().unwrap(),
            "fd00::1/64".parse().unwrap()
        ]
    );
    assert_eq!(plan.ips[0].gateway, Some("10.1.0.1".parse().unwrap()));
    assert!(plan.routes.is_empty());
}

#[test]
fn bridge_without_gateway_bears_no_address() {
    let plan = plan(
        Gateway::None,
        vec![ip("10.1.0.9/24", Some("10.1.0.1"))],
        vec![],
    )
    .unwrap();
    assert!(plan.gateways.is_empty());
}

#[test]
fn default_gateway_adds_a_default_route_for_each_family() {
    let plan = plan(
        Gateway::DefaultRoute,
        vec![ip("10.1.0.9/24", None), ip("fd00::9/64", None)],
        vec![],
    )
    .unwrap();
    assert_eq!(
        plan.routes,
        [
            route("0.0.0.0/0", Some("10.1.0.1")),
            route("::/0", Some("fd00::1"))
        ]
    );
}

#[test]
fn default_route_without_gateway_takes_the_bridge() {
    let leased = vec![route("0.0.0.0/0", None)];
    let plan = plan(Gateway::DefaultRoute, vec![ip("10.1.0.9/24", None)], leased).unwrap();
    assert_eq!(plan.routes, [route("0.0.0.0/0", Some("10.1.0.1"))]);
}

#[test]
fn default_route_of_the_lease_is_kept_but_in_another_table_replaces_none() {
    let in_table = |table| Route {
        table: Some(table),
        ..route("0.0.0.0/0", Some("10.1.0.254"))
    };
    for leased in [
        route("0.0.0.0/0", Some("10.1.0.254")),
        in_table(0),
        in_table(254),
    ] {
        let kept = vec![leased];
        let ips = vec![ip("10.1.0.9/24", None)];
        let plan = plan(Gateway::DefaultRoute, ips, kept.clone()).unwrap();
        assert_eq!(plan.routes, kept);
    }
    let ips = vec![ip("10.1.0.9/24", None)];
    let plan = plan(Gateway::DefaultRoute, ips, vec![in_table(100)]).unwrap();
    let added = route("0.0.0.0/0", Some("10.1.0.1"));
    assert_eq!(plan.routes, [in_table(100), added]);
}

#[test]
fn route_of_link_scope_has_no_next_hop() {
    let on_link = Route {
        scope: Some(253),
        ..route("10.9.0.0/16", None)
    };
    let ips = [ip("10.1.0.9/24", Some("10.1.0.1"))];
    assert_eq!(next_hop(&on_link, &ips), None);
    let global = Route {
        scope: Some(0),
        ..on_link
    };
    assert_eq!(next_hop(&global, &ips), ips[0].gateway);
}

#[test]
fn lease_that_cannot_work_is_refused() {
    assert_eq!(plan(Gateway::None, vec![], vec![]).unwrap_err().code(), 7);
    let alone = vec![ip("10.1.0.1/32", None)];
    assert_eq!(plan(Gateway::Bridge, alone, vec![]).unwrap_err().code(), 7);
    let lease = AddResult {
        ips: vec![ip("fd00::9/64", None)],
        ..AddResult::default()
    };
    assert_eq!(
        Plan::new(&Config::default(), &lease, 1279)
            .unwrap_err()
            .code(),
        7
    );
}

#[test]
fn route_without_gateway_takes_the_one_of_its_family() {
    let ips = [ip("10.1.0.9/24", None), ip("10.2.0.9/24", Some("10.2.0.1"))];
    assert_eq!(next_hop(&route("0.0.0.0/0", None), &ips), ips[1].gateway);
    assert_eq!(next_hop(&route("::/0", None), &ips), None);
}

#[test]
fn mac_follows_from_the_first_ipv4_address() {
    let ips = [ip("fd00::9/64", None), ip("10.1.0.9/24", None)];
    let mac = derived_mac(&ips, &attachment());
    assert_eq!(mac.to_string(), "0a:58:0a:01:00:09");
    assert!(must_announce(&ips, mac), "IPv6 does not follow from it");
    assert!(!must_announce(&ips[1..], mac));
    let v6 = derived_mac(&ips[..1], &attachment());
    assert!(v6.to_string().starts_with("0e:") && !must_announce(&ips[..1], v6));
}

#[test]
fn names_and_macs_of_the_pair_are_fit_for_the_kernel() {
    let name = host_link_name(&attachment());
    assert_eq!((name.len(), &name[..4]), (15, "veth"));
    assert!(host_mac(&attachment()).is_unicast() && early_mac(&attachment()).is_unicast());
    assert_ne!(host_mac(&attachment()), early_mac(&attachment()));
}
