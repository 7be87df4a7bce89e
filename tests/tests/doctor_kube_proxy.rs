//! cnitool doctor beside kube-proxy 1.36 in iptables mode, whose rules count packets in nfacct
//! objects.

use std::fs;
use std::os::fd::AsRawFd as _;

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};
use tests::traffic::tcp;
use tests::{Host, Place as _};

/// kube-proxy's rules of the table `filter`, as `iptables-save` prints them.
const RULES: &str = r#"*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
"#;

#[test]
fn rules_with_nfacct_are_tried() {
    for program in ["iptables-nft-restore", "iptables-legacy-restore"] {
        let host = Host::new();
        let outside = host.outside();
        let a = host.sandbox("a");
        let tool = host.pods();
        tool.add("pods", &a, &[]);
        add_account("ct_state_invalid_dropped_pkts");
        let restore = |rules: &str| {
            let file = host.dir().join("rules");
            fs::write(&file, rules).unwrap();
            host.run("sh", &["-c", &format!("{program} {}", file.display())]);
        };
        restore(RULES);
        assert!(tcp(&a, &outside, "192.0.2.2").is_some());
        let findings = tool.doctor();
        assert_eq!(findings.status, 0, "{program}: {findings:#?}");
        let words = ["new packets of pods on cni1 pass"];
        findings.expect("ok", "firewall", &words);
        if program != "iptables-nft-restore" {
            continue;
        }
        restore(&RULES.replace("INVALID", "NEW"));
        assert_eq!(tcp(&a, &outside, "192.0.2.2"), None);
        let words = ["to other hosts (TCP)", "dropped"];
        tool.doctor().expect("problem", "firewall", &words);
    }
}

/// Creates an nfacct object, as `nfacct add NAME` does.
fn add_account(name: &str) {
    let protocol = SockProtocol::NetlinkNetFilter;
    let of = (
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
    );
    let socket = socket(of.0, of.1, of.2, protocol).unwrap();
    let padded = (name.len() + 1).next_multiple_of(4);
    let mut text = name.as_bytes().to_vec();
    text.resize(padded, 0);
    let word = |it: usize| u16::try_from(it).unwrap().to_ne_bytes();
    // NFNL_SUBSYS_ACCT and NFNL_MSG_ACCT_NEW; NLM_F_REQUEST, NLM_F_ACK and NLM_F_CREATE.
    let length = u32::try_from(24 + padded).unwrap().to_ne_bytes();
    let header = [&length[..], &word(7 << 8), &word(0x405), &[0; 8]].concat();
    let attribute = [&word(4 + name.len() + 1)[..], &word(1), &text].concat();
    let message = [header, vec![0; 4], attribute].concat();
    let (fd, kernel) = (socket.as_raw_fd(), NetlinkAddr::new(0, 0));
    sendto(fd, &message, &kernel, MsgFlags::empty()).unwrap();
    let mut answer = [0; 512];
    recv(fd, &mut answer, MsgFlags::empty()).unwrap();
    assert_eq!(answer[16..20], [0; 4], "the kernel refuses nfacct {name}");
}
