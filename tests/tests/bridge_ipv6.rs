//! bridge: sandboxes with IPv6 settings of their own, and the time that ADD waits for them.

use std::time::{Duration, Instant};

use tests::{Host, Network, Place as _, Sandbox};

/// Less than the longest wait of ADD.
const AT_ONCE: Duration = Duration::from_secs(8);

#[track_caller]
fn add_at_once(network: &Network<'_>, sandbox: &Sandbox) {
    let start = Instant::now();
    network.add(sandbox);
    assert!(start.elapsed() < AT_ONCE, "ADD took {:?}", start.elapsed());
}

/// Returns the network with an IPAM plugin that `bridge` does not know, which may look into the
/// sandbox.
fn with_other_ipam<'h>(host: &'h Host, network: Network<'h>) -> Network<'h> {
    let find = "for dir in $(echo $CNI_PATH | tr : ' ')";
    let run = "do [ -x $dir/host-local ] && exec $dir/host-local";
    host.script("other-ipam", &format!("{find}; {run}; done"));
    network.with("ipam.type", "other-ipam")
}

#[test]
fn sandbox_that_wants_no_link_local_address_gets_none_and_is_not_waited_for() {
    let host = Host::new();
    let networks = [
        ("four", host.bridge_v4()),
        ("six", host.bridge()),
        ("dad", host.bridge().with("enabledad", true)),
        ("other", with_other_ipam(&host, host.bridge())),
    ];
    for (name, network) in networks {
        let sandbox = host.sandbox(name);
        sandbox.set_sysctl("net/ipv6/conf/default/addr_gen_mode", "1");
        add_at_once(&network, &sandbox);
        let link_local = sandbox.link_local_addresses("eth0");
        assert_eq!(link_local, Vec::<String>::new(), "{name}");
        assert!(sandbox.pings("10.1.0.1"), "{name}");
        assert!(name == "four" || sandbox.pings("fd00:1::1"), "{name}");
        let mode = sandbox.sysctl("net/ipv6/conf/eth0/addr_gen_mode");
        assert_eq!(mode.unwrap(), "1");
        network.del(&sandbox);
    }
}

#[test]
fn duplicate_address_is_found_where_there_is_no_link_local_address() {
    let host = Host::new();
    let sandbox = host.sandbox("a");
    sandbox.set_sysctl("net/ipv6/conf/default/addr_gen_mode", "1");
    host.ip("link add cni0 type bridge");
    host.ip("link set cni0 up");
    host.ip("address add fd00:1::2/64 dev cni0 nodad");
    let network = host.bridge().with("enabledad", true);
    let refusal = network.with("isGateway", false).on("ADD", &sandbox).error();
    assert!(refusal.mentions("fd00:1::2"), "{refusal:?}");
}

/// The port sends the sandbox's own solicitations back.
#[test]
fn addresses_of_a_port_with_hairpin_mode_are_no_duplicates() {
    let host = Host::new();
    let sandbox = host.sandbox("a");
    for name in ["all", "default"] {
        sandbox.set_sysctl(&format!("net/ipv6/conf/{name}/enhanced_dad"), "0");
    }
    let network = host.bridge().with("enabledad", true);
    network.with("hairpinMode", true).add(&sandbox);
    assert!(sandbox.pings("fd00:1::1"));
}

#[test]
fn ipam_plugin_that_is_not_listed_may_lease_ipv6_where_it_is_disabled() {
    let host = Host::new();
    let network = with_other_ipam(&host, host.bridge());
    for dad in [false, true] {
        let sandbox = host.sandbox(&format!("dad-{dad}"));
        sandbox.set_sysctl("net/ipv6/conf/default/disable_ipv6", "1");
        add_at_once(&network.clone().with("enabledad", dad), &sandbox);
        assert!(sandbox.pings("10.1.0.1") && sandbox.pings("fd00:1::1"));
        assert_eq!(sandbox.link_local_addresses("eth0").len(), 1);
        let mode = sandbox.sysctl("net/ipv6/conf/eth0/addr_gen_mode");
        assert_eq!(mode.unwrap(), "0");
        network.del(&sandbox);
    }
}
