//! portmap: SCTP, for which the kernel may lack support.

use tests::traffic::{sctp_by_port, tcp_by_port};
use tests::{Host, Place as _};

#[test]
fn sctp_reaches_the_pod_from_other_hosts_and_the_host_in_both_families() {
    let host = Host::new();
    let outside = host.outside();
    host.ip("address add 2001:db8::1/64 dev uplink nodad");
    outside.ip("address add 2001:db8::2/64 dev outside nodad");
    let a = host.sandbox("a");
    let portmap = host.ports().add(&a, &["8080:80/sctp"]);
    for (target, client) in [
        ("192.0.2.1:8080", "192.0.2.2"),
        ("[2001:db8::1]:8080", "2001:db8::2"),
    ] {
        let seen = sctp_by_port(&outside, target, (&a, 80));
        assert_eq!(seen, Some(client.parse().unwrap()));
    }
    assert!(sctp_by_port(&host, "192.0.2.1:8080", (&a, 80)).is_some());
    assert!(sctp_by_port(&host, "127.0.0.1:8080", (&a, 80)).is_some());
    assert!(tcp_by_port(&host, "192.0.2.1:8080", (&a, 80)).is_none());
    portmap.on("CHECK", &a).ok();
    portmap.del(&a);
    assert!(sctp_by_port(&outside, "192.0.2.1:8080", (&a, 80)).is_none());
}
