//! portmap and firewall on a kernel without netfilter, which opens no netfilter socket.

use nix::errno::Errno;
use tests::faults::{Harm, Trace};
use tests::{Host, Invocation};

#[test]
fn del_and_gc_succeed_without_netfilter() {
    let host = Host::new();
    let a = host.sandbox("a");
    let file = host.dir().join("trace");
    let without = |invocation: &Invocation| {
        let calls = Trace::of(invocation, &file).calls("socket");
        let mut calls = calls.iter();
        let call = calls.find(|it| it.line().contains("NETLINK_NETFILTER"));
        let fault = call.unwrap().with(Harm::Error(Errno::EPROTONOSUPPORT));
        fault.strikes(invocation, &file).ok();
    };
    for plugin in ["portmap", "firewall"] {
        let network = host.bandwidth().with("type", plugin);
        let network = network.with("cniVersion", "1.1.0");
        without(&network.on("DEL", &a));
        without(&network.gc(&[]));
    }
}
