//! Host ports as elements of the table, and back.

use nft::{Element, IpVersion, Set, Value};

use crate::names::{FAMILIES, names};
use crate::plan::{Forward, HostPort};

/// What an element is for whose key is a host port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It forwards the port.
    Forward,
    /// It leads to the conditions of the port.
    Condition,
}

/// The element that forwards `port`, without what it leads to.
pub(crate) fn port_element(port: HostPort, owner: &str) -> Element {
    let names = names(port.version);
    let set = match port.address {
        Some(_) => names.address_ports,
        None => names.ports,
    };
    Element::new(set, &key(port), owner)
}

/// The element that leads to the conditions of `port`, without the chain.
pub(crate) fn condition_element(port: HostPort, owner: &str) -> Element {
    let names = names(port.version);
    let set = match port.address {
        Some(_) => names.address_conditions,
        None => names.conditions,
    };
    Element::new(set, &key(port), owner)
}

/// The element that exists while any single address has the same protocol and port as `port`.
pub(crate) fn count_element(port: HostPort) -> Element {
    let key = key(port.of_every_address());
    Element::new(names(port.version).counts, &key, "")
}

/// The host's port that an element forwards.
pub(crate) fn host_port(element: &Element) -> Option<HostPort> {
    let (role, port) = port_and_role(element)?;
    (role == Role::Forward).then_some(port)
}

/// The host's port that an element forwards, or has the conditions of.
pub(crate) fn concerned_port(element: &Element) -> Option<HostPort> {
    port_and_role(element).map(|(_, port)| port)
}

/// The forward of an element that forwards a port; `None` for all other elements.
pub fn forward(element: &Element) -> Option<Forward> {
    let (_, _, set) = classify(element)?;
    let [Value::Address(pod), Value::Port(container_port)] = *element.target(&set).as_slice()
    else {
        return None;
    };
    Some(Forward {
        port: host_port(element)?,
        pod,
        container_port,
    })
}

/// The set of the ports of single addresses.
pub(crate) fn of_single_addresses(version: IpVersion) -> Set {
    names(version).address_set()
}

fn port_and_role(element: &Element) -> Option<(Role, HostPort)> {
    let (role, version, set) = classify(element)?;
    let (address, protocol, port) = match *element.key(&set).as_slice() {
        [
            Value::Address(address),
            Value::Protocol(protocol),
            Value::Port(port),
        ] => (Some(address), protocol, port),
        [Value::Protocol(protocol), Value::Port(port)] => (None, protocol, port),
        _ => return None,
    };
    let port = HostPort {
        version,
        address,
        protocol,
        port,
    };
    Some((role, port))
}

/// With a set that has such keys.
fn classify(element: &Element) -> Option<(Role, IpVersion, Set)> {
    FAMILIES.into_iter().find_map(|names| {
        let (role, set) = match element.set.as_str() {
            name if name == names.address_ports => (Role::Forward, names.address_set()),
            name if name == names.ports => (Role::Forward, names.port_set()),
            name if name == names.address_conditions => (Role::Condition, names.address_set()),
            name if name == names.conditions => (Role::Condition, names.port_set()),
            _ => return None,
        };
        Some((role, names.version, set))
    })
}

fn key(port: HostPort) -> Vec<Value<'static>> {
    let address = port.address.map(Value::Address);
    let port = [Value::Protocol(port.protocol), Value::Port(port.port)];
    address.into_iter().chain(port).collect()
}
