//! Conversion between host ports and elements of the table.

use nft::{Element, IpVersion, Set, Value};

use crate::names::{FAMILIES, names};
use crate::plan::{Forward, HostPort};

/// Purpose of an element whose key is a host port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The element translates the destination to the container (DNAT).
    Forward,
    /// The element points to the chain with the port's conditions.
    Condition,
}

/// Returns the element that forwards `port`. The caller adds the value, the container's address and
/// port.
pub(crate) fn port_element(port: HostPort, owner: &str) -> Element {
    let names = names(port.version);
    let set = match port.address {
        Some(_) => names.address_ports,
        None => names.ports,
    };
    Element::new(set, &key(port), owner)
}

/// Returns the element that points to the conditions of `port`. The caller adds the chain.
pub(crate) fn condition_element(port: HostPort, owner: &str) -> Element {
    let names = names(port.version);
    let set = match port.address {
        Some(_) => names.address_conditions,
        None => names.conditions,
    };
    Element::new(set, &key(port), owner)
}

/// Returns the element that counts the ports of single addresses with the protocol and number of
/// `port`. It exists while there is at least one.
pub(crate) fn count_element(port: HostPort) -> Element {
    let key = key(port.of_every_address());
    Element::new(names(port.version).counts, &key, "")
}

/// Returns the host port that `element` forwards; `None` if the element does not forward a port.
pub(crate) fn host_port(element: &Element) -> Option<HostPort> {
    let (role, port) = port_and_role(element)?;
    (role == Role::Forward).then_some(port)
}

/// Returns the host port that `element` forwards or holds the conditions of.
pub(crate) fn concerned_port(element: &Element) -> Option<HostPort> {
    port_and_role(element).map(|(_, port)| port)
}

/// Returns the host port that `element` forwards, and the container's address and port; `None` if
/// the element does not forward a port.
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

/// Returns the set with the ports of single addresses, in contrast to ports of all addresses.
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

/// Returns the element's role, its family, and a set whose keys have the same type as the element's
/// key.
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
