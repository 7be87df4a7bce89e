//! Fair queues: the parameters of `fq_codel`, and how the kernel reports them.
//!
//! Source: `include/uapi/linux/pkt_sched.h`, `net/sched/sch_fq_codel.c`.

use netlink_packet_core::DefaultNla;

use crate::bucket::number;

/// Parameters of an `fq_codel`. This qdisc has one queue for each flow, and the flows take turns. A
/// flow without a backlog goes first. If packets of a flow wait too long, `CoDel` drops some of
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FairQueue {
    /// Acceptable waiting time of a flow's packets, in microseconds.
    pub target: u32,
    /// Time in microseconds after which `CoDel` drops a packet, if the waiting time exceeded the
    /// target for all of this time.
    pub interval: u32,
    /// Packets of all flows that may wait. Beyond that, the kernel drops packets of the flow with
    /// the largest backlog.
    pub limit: u32,
    /// Bytes that a flow sends in its turn.
    pub quantum: u32,
    /// Bytes of kernel memory that waiting packets may use. Beyond that, the kernel drops packets
    /// of the flow with the largest backlog.
    pub memory: u32,
}

impl FairQueue {
    /// Returns whether `held`, which the kernel reports, has these parameters. The times may differ
    /// by up to two microseconds, because the kernel counts in units of 1,024 ns.
    pub fn is_held_by(&self, held: &Self) -> bool {
        let is_near = |one: u32, other: u32| one.abs_diff(other) <= ROUNDING;
        is_near(self.target, held.target)
            && is_near(self.interval, held.interval)
            && (self.limit, self.quantum, self.memory) == (held.limit, held.quantum, held.memory)
    }

    pub(crate) fn options(&self) -> Vec<DefaultNla> {
        let options = [
            (TARGET, self.target),
            (LIMIT, self.limit),
            (INTERVAL, self.interval),
            (QUANTUM, self.quantum),
            (MEMORY, self.memory),
        ];
        let option = |(kind, value): (u16, u32)| DefaultNla::new(kind, value.to_ne_bytes().into());
        options.map(option).into()
    }

    pub(crate) fn of(options: &[(u16, Vec<u8>)]) -> Option<Self> {
        let parameter = |kind| number(options, kind, 0);
        Some(Self {
            target: parameter(TARGET)?,
            interval: parameter(INTERVAL)?,
            limit: parameter(LIMIT)?,
            quantum: parameter(QUANTUM)?,
            memory: parameter(MEMORY)?,
        })
    }
}

const TARGET: u16 = 1;
const LIMIT: u16 = 2;
const INTERVAL: u16 = 3;
const QUANTUM: u16 = 6;
const MEMORY: u16 = 9;

/// Largest difference in microseconds that the kernel's rounding causes.
const ROUNDING: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_compared_in_the_kernels_units() {
        // The kernel counts times in units of 1,024 ns. After `tc qdisc add … fq_codel target
        // 18168us interval 113168us`, it reports 18,167 µs and 113,167 µs.
        let wanted = FairQueue {
            target: 18_168,
            interval: 113_168,
            limit: 64,
            quantum: 1514,
            memory: 387_584,
        };
        let held = FairQueue {
            target: 18_167,
            interval: 113_167,
            ..wanted
        };
        assert!(wanted.is_held_by(&held));
        for other in [
            FairQueue {
                target: 5000,
                ..held
            },
            FairQueue {
                interval: 100_000,
                ..held
            },
            FairQueue { limit: 65, ..held },
            FairQueue { memory: 1, ..held },
            FairQueue {
                quantum: 1515,
                ..held
            },
        ] {
            assert!(!wanted.is_held_by(&other), "{other:?}");
        }
    }
}
