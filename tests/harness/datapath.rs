//! Measures the cost of a packet: what a connection of a pod may carry behind bare links, behind our
//! plugins and behind the reference's.
//!
//! Each side is a node of its own with a bridge, pods, and a far machine behind a router, all of
//! them namespaces. The sides exist at the same time and are measured in turns, in a new random
//! order each time. A ratio compares two slots that follow each other, so that other load on the
//! machine affects both.

mod meter;
mod node;
mod side;
mod table;

use std::time::Duration;

pub use meter::{Line, Metric, Quantity, SERVER_PORT};
pub use side::{Guard, Side};
pub use table::{Row, Table};

use crate::Host;
use node::Node;

/// Extent of a measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The sides; the first one is the limit that the others are compared with.
    pub sides: Vec<Side>,
    /// Numbers of pods, ascending and each at least two. All paths are measured with each number.
    pub pods: Vec<usize>,
    /// Turns of each side.
    pub rounds: u32,
    /// Time of one measurement.
    pub slot: Duration,
    /// What is measured on each path.
    pub metrics: Vec<Metric>,
}

/// The way that the packets take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// From the first pod to the last one, while netfilter sees bridged frames.
    Bridged,
    /// The same, while netfilter does not see bridged frames.
    Unseen,
    /// From the first pod to the host itself.
    Host,
    /// From this pod through a router to another machine.
    Out(Which),
    /// From that machine to this pod's port of the host.
    In(Which),
}

/// One of the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The one that was attached first.
    First,
    /// The one that was attached last.
    Last,
}

/// Measures all paths and returns the table. Shows the table `so_far` after each number of pods,
/// because many pods take the reference long.
pub fn measure(host: &Host, plan: &Plan, so_far: impl Fn(&Table)) -> Table {
    let sides = plan.sides.iter();
    let mut nodes: Vec<_> = sides.map(|side| Node::new(host, side)).collect();
    let mut table = Table::new(&plan.sides);
    for (stage, pods) in plan.pods.iter().enumerate() {
        for node in &mut nodes {
            node.attach(host, *pods);
        }
        for _ in 0..plan.rounds {
            for path in paths(stage) {
                for metric in &plan.metrics {
                    let case = Case {
                        pods: *pods,
                        path: *path,
                        metric: *metric,
                    };
                    case.turn(&nodes, plan.slot, &mut table);
                }
            }
        }
        so_far(&table);
    }
    table
}

/// What one turn measures.
struct Case {
    pods: usize,
    path: Path,
    metric: Metric,
}

impl Case {
    /// Measures it once on each side.
    fn turn(&self, nodes: &[Node], slot: Duration, table: &mut Table) {
        let mut order: Vec<_> = (0..nodes.len()).collect();
        shuffle(&mut order);
        let mut measured = vec![Vec::new(); nodes.len()];
        for place in order {
            measured[place] = self.metric.measure(&nodes[place].line(self.path), slot);
        }
        for (part, quantity) in self.metric.quantities().into_iter().enumerate() {
            let values = measured.iter().map(|values| values[part]).collect();
            table.note(Row::new(self.pods, self.path, quantity), values);
        }
    }
}

/// With few pods, the first one and the last one do not differ.
fn paths(stage: usize) -> &'static [Path] {
    use Which::{First, Last};
    match stage {
        0 => &[
            Path::Bridged,
            Path::Unseen,
            Path::Host,
            Path::Out(First),
            Path::In(First),
        ],
        _ => &[
            Path::Bridged,
            Path::Unseen,
            Path::Host,
            Path::Out(First),
            Path::Out(Last),
            Path::In(First),
            Path::In(Last),
        ],
    }
}

/// Orders them at random (Fisher and Yates).
pub(crate) fn shuffle(order: &mut [usize]) {
    use std::hash::{BuildHasher as _, RandomState};
    for last in (1..order.len()).rev() {
        let random = RandomState::new().hash_one(last);
        let other = random % (last as u64 + 1);
        order.swap(last, usize::try_from(other).unwrap());
    }
}
