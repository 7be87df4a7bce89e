//! Conversion between host ports and elements of portmap's table in `nf_tables`.

use nft::{Element, HostPort, IpVersion, Value};

use crate::Forward;
use crate::names::{
    ADDRESS_CONDITIONS, ADDRESS_PORTS, CONDITIONS, COUNTS, PORTS, SetName, address_set, port_set,
};

/// Returns the element that forwards `port`. The caller adds the element's target: the container's
/// address and port.
pub(crate) fn port_element(port: HostPort, owner: &str) -> Element {
    element(port, FORWARDING, owner)
}

/// Returns the element that limits the forwarding of `port` to packets that meet conditions. The
/// caller adds the element's target: the chain with the conditions.
pub(crate) fn condition_element(port: HostPort, owner: &str) -> Element {
    element(port, CONDITIONAL, owner)
}

fn element(port: HostPort, [single, every]: [SetName; 2], owner: &str) -> Element {
    let set = port.address.map_or(every, |_| single);
    Element::new(set.of(port.version), &key(port), owner)
}

/// Returns the element that counts the single addresses of the host for which the protocol and
/// number of `port` are forwarded. `nf_tables` has this element only while the count is at least 1.
pub(crate) fn count_element(port: HostPort) -> Element {
    let key = key(port.of_every_address());
    Element::new(COUNTS.of(port.version), &key, "")
}

/// Returns the host port that `element` forwards. `None` if `element` does not forward a port, but
/// has conditions or a count, or masquerades.
pub(crate) fn host_port(element: &Element) -> Option<HostPort> {
    port_in_key(element, FORWARDING)
}

/// Returns the host port in the key of `element`. `None` if `element` neither forwards a port nor
/// points to the chain with a port's conditions.
pub(crate) fn concerned_port(element: &Element) -> Option<HostPort> {
    host_port(element).or_else(|| port_in_key(element, CONDITIONAL))
}

/// Returns the host port that `element` forwards, and the container's address and port; `None` if
/// the element does not forward a port.
pub fn forward(element: &Element) -> Option<Forward> {
    let port = host_port(element)?;
    // The set of ports of single addresses has targets of the same types as this set of ports of
    // all addresses.
    let set = port_set(port.version);
    let [Value::Address(pod), Value::Port(container_port)] = *element.target(&set).as_slice()
    else {
        return None;
    };
    Some(Forward {
        port,
        pod,
        container_port,
    })
}

/// Returns the host port in the key of `element`. `None` if `element` is neither in the set
/// `single`, which has ports of single addresses, nor in the set `every`, which has ports of all
/// addresses.
fn port_in_key(element: &Element, [single, every]: [SetName; 2]) -> Option<HostPort> {
    IpVersion::ALL.into_iter().find_map(|version| {
        let set = match element.set.as_str() {
            name if name == single.of(version) => address_set(version),
            name if name == every.of(version) => port_set(version),
            _ => return None,
        };
        let (address, protocol, port) = match *element.key(&set).as_slice() {
            [
                Value::Address(address),
                Value::Protocol(protocol),
                Value::Port(port),
            ] => (Some(address), protocol, port),
            [Value::Protocol(protocol), Value::Port(port)] => (None, protocol, port),
            _ => return None,
        };
        Some(HostPort {
            version,
            address,
            protocol,
            port,
        })
    })
}

fn key(port: HostPort) -> Vec<Value<'static>> {
    let address = port.address.map(Value::Address);
    let port = [Value::Protocol(port.protocol), Value::Port(port.port)];
    address.into_iter().chain(port).collect()
}

/// The sets of forwarded ports, in this order: ports of single addresses of the host, and ports of
/// all addresses.
const FORWARDING: [SetName; 2] = [ADDRESS_PORTS, PORTS];

/// The sets of ports with conditions, in this order: ports of single addresses of the host, and
/// ports of all addresses.
const CONDITIONAL: [SetName; 2] = [ADDRESS_CONDITIONS, CONDITIONS];
