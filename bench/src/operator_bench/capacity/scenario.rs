//! Random clusters and runs that compete for them: each run fits alone, but not all of them together.
//!
//! Nodes have 1 to 8 GPUs and may be tainted or labelled; runs have trainers and engines of several sizes that may
//! tolerate the taint or require the label. A search of every placement decides whether runs fit, on purpose in another
//! way than the operator's.

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};

const SIZES: [u32; 4] = [1, 2, 4, 8];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub gpus: u32,
    /// Only pods that tolerate its taint may run on it.
    pub special: bool,
    pub zone: char,
}

/// Pods with equal requirements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pods {
    pub count: u32,
    pub gpus: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub trainer: Pods,
    pub engines: Pods,
    pub tolerates: bool,
    /// The run's pods may run only on nodes of this zone.
    pub zone: Option<char>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    pub nodes: Vec<Node>,
    pub runs: Vec<Run>,
}

impl Scenario {
    /// The scenario with this number, always the same.
    pub fn of(number: u64) -> Self {
        let mut random = StdRng::seed_from_u64(number);
        loop {
            let drawn = Self::drawn(&mut random);
            if drawn.is_a_contest() {
                return drawn;
            }
        }
    }

    fn drawn(random: &mut StdRng) -> Self {
        let tainted = random.random_bool(0.3);
        let zoned = random.random_bool(0.3);
        let zone = |random: &mut StdRng| *['a', 'b'].choose(random).unwrap_or(&'a');
        let nodes = (0..random.random_range(1..=5)).map(|_| Node {
            gpus: size(random),
            special: tainted && random.random_bool(0.4),
            zone: zone(random),
        });
        let nodes = nodes.collect();
        let runs = (0..random.random_range(2..=3)).map(|_| Run {
            trainer: Pods {
                count: random.random_range(1..=3),
                gpus: size(random),
            },
            engines: Pods {
                count: random.random_range(1..=3),
                gpus: size(random).min(4),
            },
            tolerates: tainted && random.random_bool(0.5),
            zone: (zoned && random.random_bool(0.5)).then(|| zone(random)),
        });
        Self {
            runs: runs.collect(),
            nodes,
        }
    }

    /// Whether each run fits alone, but not all together.
    fn is_a_contest(&self) -> bool {
        let free: Vec<u32> = self.nodes.iter().map(|node| node.gpus).collect();
        let all: Vec<&Run> = self.runs.iter().collect();
        self.runs.iter().all(|run| self.fits(&free, &[run])) && !self.fits(&free, &all)
    }

    /// Whether these runs fit into the free GPUs of each node.
    pub fn fits(&self, free: &[u32], runs: &[&Run]) -> bool {
        let mut pods: Vec<Pod> = Vec::new();
        for run in runs {
            for group in [&run.trainer, &run.engines] {
                let pod = (group.gpus, run.tolerates, run.zone);
                pods.extend((0..group.count).map(|_| pod));
            }
        }
        if pods.iter().map(|pod| pod.0).sum::<u32>() > free.iter().sum() {
            return false;
        }
        pods.sort_by_key(|pod| std::cmp::Reverse(*pod));
        self.place(&mut free.to_vec(), &pods, 0)
    }

    /// Tries the first pod on each node from `from` on, and places the others after it. Of two equal pods the later
    /// never gets an earlier node.
    fn place(&self, free: &mut [u32], pods: &[Pod], from: usize) -> bool {
        let Some((pod, rest)) = pods.split_first() else {
            return true;
        };
        (from..free.len()).any(|node| {
            if free[node] < pod.0 || !may_use(*pod, &self.nodes[node]) {
                return false;
            }
            free[node] -= pod.0;
            let from = if rest.first() == Some(pod) { node } else { 0 };
            let placed = self.place(free, rest, from);
            free[node] += pod.0;
            placed
        })
    }
}

/// GPUs, whether it tolerates the taint, and its zone.
type Pod = (u32, bool, Option<char>);

fn may_use((_, tolerates, zone): Pod, node: &Node) -> bool {
    (tolerates || !node.special) && zone.is_none_or(|zone| zone == node.zone)
}

impl Run {
    /// The number of pods that are admitted together: driver, trainers and engines.
    pub fn pods(&self) -> usize {
        1 + (self.trainer.count + self.engines.count) as usize
    }
}

fn size(random: &mut StdRng) -> u32 {
    *SIZES.choose(random).unwrap_or(&1)
}

#[cfg(test)]
mod tests;
