//! Conversion between host ports and elements of the table.

use nft::{Element, IpVersion, Set, Value};

use crate::names::{
    ADDRESS_CONDITIONS, ADDRESS_PORTS, CONDITIONS, COUNTS, PORTS, SetName, address_set, port_set,
};
use crate::plan::Forward;
use nft::HostPort;

/// What an element whose key is a host port does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The element translates the destination to the container (DNAT).
    Forward,
    /// The element points to the chain with the port's conditions.
    Condition,
}

/// Returns the element that forwards `port`. The caller adds the element's target: the container's
/// address and port.
pub(crate) fn port_element(port: HostPort, owner: &str) -> Element {
    element(port, [ADDRESS_PORTS, PORTS], owner)
}

/// Returns the element for the conditions of `port`. The caller adds the element's target: the chain
/// with the conditions.
pub(crate) fn condition_element(port: HostPort, owner: &str) -> Element {
    element(port, [ADDRESS_CONDITIONS, CONDITIONS], owner)
}

fn element(port: HostPort, [single, every]: [SetName; 2], owner: &str) -> Element {
    let set = port.address.map_or(every, |_| single);
    Element::new(set.of(port.version), &key(port), owner)
}

/// Returns the element that counts the ports of single addresses with the protocol and number of
/// `port`. The set has this element while there is at least one such port.
pub(crate) fn count_element(port: HostPort) -> Element {
    let key = key(port.of_every_address());
    Element::new(COUNTS.of(port.version), &key, "")
}

/// Returns the host port that `element` forwards; `None` if the element does not forward a port.
pub(crate) fn host_port(element: &Element) -> Option<HostPort> {
    let (role, port) = port_and_role(element)?;
    (role == Role::Forward).then_some(port)
}

/// Returns the host port in the key of `element`, which forwards the port or points to its
/// conditions; `None` for any other element.
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

/// Returns the role and the IP version of an element whose key is a host port. Also returns a set
/// with keys of the same types, by which the caller can parse the element's key. Returns `None` for
/// any other element.
fn classify(element: &Element) -> Option<(Role, IpVersion, Set)> {
    IpVersion::ALL.into_iter().find_map(|version| {
        let mut sets = PORT_SETS.into_iter();
        let (_, role, set) = sets.find(|(name, ..)| element.set == name.of(version))?;
        Some((role, version, set(version)))
    })
}

fn key(port: HostPort) -> Vec<Value<'static>> {
    let address = port.address.map(Value::Address);
    let port = [Value::Protocol(port.protocol), Value::Port(port.port)];
    address.into_iter().chain(port).collect()
}

type SetOf = fn(IpVersion) -> Set;

/// For each set whose keys are host ports: its name, the role of its elements, and a function that
/// returns a set whose keys have the same types.
const PORT_SETS: [(SetName, Role, SetOf); 4] = [
    (ADDRESS_PORTS, Role::Forward, address_set),
    (PORTS, Role::Forward, port_set),
    (ADDRESS_CONDITIONS, Role::Condition, address_set),
    (CONDITIONS, Role::Condition, port_set),
];
