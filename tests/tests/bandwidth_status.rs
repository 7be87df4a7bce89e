//! bandwidth STATUS: what it says about the kernel.

use serde_json::Value;
use tests::faults::{Harm, Trace};
use tests::{Host, Place as _};

/// Returns whether the kernel has `fq_codel`.
fn has_fair_queues(host: &Host) -> bool {
    let tried = "tc qdisc add dev lo root fq_codel 2>&1 && tc qdisc del dev lo root || true";
    host.run("sh", &["-c", tried]).is_empty()
}

const FAIR_QUEUES: &str = "sch_fq_codel";

#[test]
fn status_reports_nothing_on_a_complete_kernel_and_leaves_nothing() {
    let host = Host::new();
    let before = host.snapshot();
    let network = host.bandwidth().with("cniVersion", "1.1.0");
    let outcome = network.call("STATUS").run();
    assert_eq!(outcome.ok(), Value::Null);
    let told = if has_fair_queues(&host) {
        ""
    } else {
        "the kernel lacks sch_fq_codel, so all packets of a limited container wait in one queue; \
         load it with: modprobe sch_fq_codel\n"
    };
    assert_eq!(outcome.stderr, told);
    host.snapshot().assert_same_as(&before);
}

#[test]
fn status_succeeds_and_reports_what_the_kernel_lacks() {
    let host = Host::new();
    let network = host.bandwidth().with("cniVersion", "1.1.0");
    let file = host.dir().join("trace");
    let trace = Trace::of(&network.call("STATUS"), &file);
    let (mut told, mut queues) = (Vec::new(), false);
    for call in trace.calls("sendto") {
        let outcome = call
            .with(Harm::Refusal)
            .strikes(&network.call("STATUS"), &file)
            .run();
        outcome.ok();
        let modules = outcome.stderr.lines();
        let modules = modules.filter_map(|it| it.strip_prefix("the kernel lacks "));
        let modules: Vec<_> = modules.map(|it| it.split(',').next().unwrap()).collect();
        queues |= modules.contains(&FAIR_QUEUES);
        let module = modules.into_iter().find(|it| *it != FAIR_QUEUES);
        told.extend(module.map(str::to_owned));
    }
    assert!(queues, "{FAIR_QUEUES}");
    told.dedup();
    assert_eq!(told, ["sch_htb", "cls_u32", "sch_tbf"]);
    network
        .with("ingressRate", 1)
        .call("STATUS")
        .error()
        .expect(7, &["ingressRate"]);
}
