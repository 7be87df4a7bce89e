use super::*;

fn ip(address: &str, gateway: Option<&str>) -> IpConfig {
    IpConfig {
        gateway: gateway.map(|gateway| gateway.parse().unwrap()),
        ..IpConfig::of(address.parse().unwrap())
    }
}

fn leased(mode: Gateway, ips: Vec<IpConfig>, routes: Vec<Route>) -> Result<Addressing, Error> {
    let lease = AddResult {
        ips,
        routes,
        ..AddResult::default()
    };
    Addressing::leased(mode, &lease, 1500)
}

fn route(dst: &str, gw: Option<&str>) -> Route {
    Route {
        gw: gw.map(|gw| gw.parse().unwrap()),
        ..Route::to(dst.parse().unwrap())
    }
}

#[test]
fn gateway_is_the_first_address_where_the_lease_names_none() {
    let plan = leased(
        Gateway::Address,
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
fn bridge_without_gateway_has_no_address() {
    let plan = leased(
        Gateway::None,
        vec![ip("10.1.0.9/24", Some("10.1.0.1"))],
        vec![],
    )
    .unwrap();
    assert!(plan.gateways.is_empty());
}

#[test]
fn default_gateway_adds_a_default_route_for_each_family() {
    let plan = leased(
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
    let routes = vec![route("0.0.0.0/0", None)];
    let plan = leased(Gateway::DefaultRoute, vec![ip("10.1.0.9/24", None)], routes).unwrap();
    assert_eq!(plan.routes, [route("0.0.0.0/0", Some("10.1.0.1"))]);
}

#[test]
fn default_route_of_the_lease_is_kept_but_in_another_table_replaces_none() {
    let in_table = |table| Route {
        table: Some(table),
        ..route("0.0.0.0/0", Some("10.1.0.254"))
    };
    for route in [
        route("0.0.0.0/0", Some("10.1.0.254")),
        in_table(0),
        in_table(254),
    ] {
        let kept = vec![route];
        let ips = vec![ip("10.1.0.9/24", None)];
        let plan = leased(Gateway::DefaultRoute, ips, kept.clone()).unwrap();
        assert_eq!(plan.routes, kept);
    }
    let ips = vec![ip("10.1.0.9/24", None)];
    let plan = leased(Gateway::DefaultRoute, ips, vec![in_table(100)]).unwrap();
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
    assert_eq!(leased(Gateway::None, vec![], vec![]).unwrap_err().code(), 7);
    let alone = vec![ip("10.1.0.1/32", None)];
    assert_eq!(
        leased(Gateway::Address, alone, vec![]).unwrap_err().code(),
        7
    );
    let lease = AddResult {
        ips: vec![ip("fd00::9/64", None)],
        ..AddResult::default()
    };
    assert_eq!(
        Addressing::leased(Gateway::None, &lease, 1279)
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
fn host_end_has_single_addresses_and_the_container_only_the_gateway_on_its_link() {
    let ips = vec![ip("10.1.0.9/24", None), ip("fd00::9/64", Some("fe80::1"))];
    let plan = leased(Gateway::HostEnd, ips, vec![]).unwrap();
    let gateways = ["10.1.0.1/32", "fe80::1/128"].map(|it| it.parse().unwrap());
    assert_eq!(plan.gateways, gateways);
    assert_eq!(plan.mode, Gateway::HostEnd);
    assert!(plan.routes.is_empty(), "the result has those of the lease");
}

#[test]
fn single_address_needs_a_leased_gateway() {
    let refusal = leased(Gateway::HostEnd, vec![ip("10.1.0.9/32", None)], vec![]);
    assert_eq!(refusal.unwrap_err().code(), 7);
    let leased = leased(
        Gateway::HostEnd,
        vec![ip("10.1.0.9/32", Some("10.1.0.1"))],
        vec![],
    );
    assert!(leased.is_ok());
}
