//! Joins a network namespace to a bridge with the requests of an ADD and nothing else.
//!
//! The example takes no lease and no lock, checks nothing and rolls nothing back. An ADD does all
//! of this. The benchmark runs the example and an ADD in turn, and their difference in time is the
//! cost of these steps. `CNI_NETNS` is the namespace; the bridge is `floor`.

use std::env;
use std::error::Error;

use ipnetwork::IpNetwork;
use netlink::{Connection, Dad, LinkChange, MacAddress, NewRoute, Request, VethEnd, VethPair};
use netns::Netns;

fn main() -> Result<(), Box<dyn Error>> {
    let namespace = env::var_os("CNI_NETNS").ok_or("CNI_NETNS is not set")?;
    let namespace = Netns::open(namespace.as_ref())?;
    let host = Connection::open()?;
    let sandbox = Connection::open_in(&namespace)?;
    let pair = VethPair {
        host: VethEnd {
            name: HOST_END,
            mac: MacAddress([0x02, 0xaa, 0, 0, 0, 1]),
        },
        container: VethEnd {
            name: "eth0",
            mac: MacAddress([0x02, 0xaa, 0, 0, 0, 2]),
        },
        mtu: 1500,
        master: Some(host.link("floor")?.index),
        alias: "floor",
        sandbox: &namespace,
    };
    host.add_veth(&pair, Vec::new())?;
    let link = sandbox.link("eth0")?.index;
    let address: IpNetwork = "10.202.0.2/16".parse()?;
    let route = NewRoute {
        gateway: Some("10.202.0.1".parse()?),
        ..NewRoute::on_link("0.0.0.0/0".parse()?, link)
    };
    sandbox.execute(vec![
        Request::add_address(link, address, Dad::Skip),
        Request::change_link("eth0", &LinkChange::Up),
        Request::add_route(&route),
    ])?;
    host.execute(vec![Request::change_link(HOST_END, &LinkChange::Up)])?;
    Ok(())
}

/// Host end of the pair; the benchmark deletes it.
const HOST_END: &str = "floor0";
