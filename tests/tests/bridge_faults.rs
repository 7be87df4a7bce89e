//! bridge: whichever system call of an ADD fails, and wherever it is killed, nothing is left.
//!
//! An ADD that fails leaves nothing by itself; one that is killed, nothing after DEL; one that
//! succeeds all the same passes CHECK. What strace cannot single out is told in `tests::faults`.

use tests::faults::{Call, Fault, Harm, Trace};
use tests::lab::{Lab, Netns, Victim};

/// Calls that make or open something, or change it, of which a thread makes few.
const RARE: [&str; 15] = [
    "bind",
    "clone",
    "clone3",
    "epoll_create1",
    "eventfd2",
    "execve",
    "fcntl",
    "flock",
    "fstatfs",
    "lseek",
    "memfd_create",
    "pipe2",
    "setns",
    "socket",
    "wait4",
];

/// How host-local makes a lease.
const OF_A_LEASE: [&str; 16] = [
    "flock",
    "getdents64",
    "linkat",
    "mkdir",
    "mkdirat",
    "openat",
    "pwrite64",
    "read",
    "rename",
    "renameat",
    "renameat2",
    "statx",
    "unlink",
    "unlinkat",
    "utimensat",
    "write",
];

fn all(calls: &[Call], harm: Harm) -> Vec<Fault> {
    calls.iter().map(|call| call.with(harm)).collect()
}

/// Every call but those that send and receive.
fn other_calls(trace: &Trace) -> Vec<Call> {
    let rare = RARE.iter().flat_map(|name| trace.calls(name));
    let files = ["openat", "read", "write"].into_iter().flat_map(|name| {
        let places = ["/proc/sys/", "/run/netns/"];
        places
            .into_iter()
            .flat_map(move |place| trace.calls_below(name, place))
    });
    rare.chain(files).collect()
}

fn calls_of_delegate(trace: &Trace) -> Vec<Call> {
    let calls = OF_A_LEASE.iter().map(|name| trace.calls(name));
    calls.flatten().collect()
}

#[test]
fn an_add_whose_netlink_message_is_refused_leaves_nothing() {
    let mut lab = Lab::new();
    let faults = all(&lab.trace().calls("sendto"), Harm::Refusal);
    lab.try_all(&faults, Victim::Bridge, Netns::Absent);
    lab.finish(15, 12);
}

#[test]
fn an_add_that_cannot_send_a_netlink_message_leaves_nothing() {
    let mut lab = Lab::new();
    let faults = all(&lab.trace().calls("sendto"), Harm::Error("ENOMEM"));
    lab.try_all(&faults, Victim::Bridge, Netns::Named);
    lab.finish(15, 12);
}

#[test]
fn an_add_that_cannot_receive_an_answer_leaves_nothing() {
    let mut lab = Lab::new();
    let faults = all(&lab.trace().calls("recvfrom"), Harm::Error("ENOMEM"));
    lab.try_all(&faults, Victim::Bridge, Netns::Named);
    lab.finish(30, 15);
}

#[test]
fn an_add_whose_other_calls_fail_leaves_nothing() {
    let mut lab = Lab::new();
    let calls = other_calls(&lab.trace());
    let faults = [
        all(&calls, Harm::Error("ENOMEM")),
        all(&calls, Harm::Error("EPERM")),
    ];
    let [out_of_memory, forbidden] = &faults;
    lab.try_all(out_of_memory, Victim::Bridge, Netns::Named);
    lab.try_all(forbidden, Victim::Bridge, Netns::Absent);
    lab.finish(80, 40);
}

#[test]
fn an_add_whose_delegate_fails_at_any_call_leaves_nothing() {
    let mut lab = Lab::new();
    let faults = all(
        &calls_of_delegate(&lab.trace_of_delegate()),
        Harm::Error("ENOMEM"),
    );
    lab.try_all(&faults, Victim::Delegate, Netns::Named);
    lab.finish(80, 12);
}

#[test]
fn an_add_whose_delegate_is_killed_at_any_call_leaves_nothing() {
    let mut lab = Lab::new();
    let faults = all(&calls_of_delegate(&lab.trace_of_delegate()), Harm::Kill);
    lab.try_all(&faults, Victim::Delegate, Netns::Absent);
    lab.finish(80, 80);
}

#[test]
fn a_del_that_cannot_speak_to_the_kernel_says_so_and_the_next_one_removes_the_rest() {
    let mut lab = Lab::new();
    for netns in [Netns::Named, Netns::Absent] {
        let trace = lab.trace_of_del(netns);
        let sent = all(&trace.calls("sendto"), Harm::Error("ENOMEM"));
        lab.try_all_on_del(&sent, netns);
        let received = all(&trace.calls("recvfrom"), Harm::Error("ENOMEM"));
        lab.try_all_on_del(&received, netns);
        // How often it asks whether the link is gone is never the same, and a message is refused
        // by its place and its length.
        let before = trace.until("/proc/self/exe").calls("sendto");
        lab.try_all_on_del(&all(&before, Harm::Refusal), netns);
    }
    lab.finish(10, 5);
}

#[test]
fn after_a_first_add_that_was_killed_the_next_one_works() {
    let mut lab = Lab::new();
    lab.cool_down();
    let trace = lab.trace();
    let written = trace.calls_below("write", "/proc/sys/");
    let steps = [trace.calls("sendto"), written].concat();
    lab.try_all_cold(&all(&steps, Harm::Kill));
    lab.finish(25, 25);
}

#[test]
fn after_a_first_add_that_failed_the_next_one_works() {
    let mut lab = Lab::new();
    lab.cool_down();
    let trace = lab.trace();
    let written = trace.calls_below("write", "/proc/sys/");
    lab.try_all_cold(&all(&trace.calls("sendto"), Harm::Refusal));
    lab.try_all_cold(&all(&written, Harm::Error("EPERM")));
    lab.finish(25, 20);
}

fn killed_at_every_call(netns: Netns) {
    let mut lab = Lab::new();
    let trace = lab.trace();
    let frequent = ["sendto", "recvfrom", "write"]
        .into_iter()
        .flat_map(|name| trace.calls(name));
    let last = trace.calls("exit_group");
    let calls: Vec<_> = frequent.chain(other_calls(&trace)).chain(last).collect();
    lab.try_all(&all(&calls, Harm::Kill), Victim::Bridge, netns);
    lab.finish(120, 110);
}

#[test]
fn del_removes_all_of_an_add_that_was_killed_at_any_call() {
    killed_at_every_call(Netns::Named);
}

#[test]
fn del_without_sandbox_removes_all_of_an_add_that_was_killed_at_any_call() {
    killed_at_every_call(Netns::Absent);
}
