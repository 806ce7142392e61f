//! Rows on their way into the model: dealt to ranks, cut into micro-batches, padded on the right.
//!
//! Dealing and cutting depend on lengths alone, never on a clock or a hash map's order, so a replayed batch is computed in the same order.

use tch::Tensor;

/// One row as the model sees it. Position i predicts `tokens[i + 1]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainRow {
    pub tokens: Vec<u32>,
    /// Weight of token i's loss, 0 where it is not trained on. Same length as `tokens`.
    pub weights: Vec<f32>,
    /// Logprob of token i when it was sampled.
    pub old: Vec<f32>,
    pub advantage: f32,
    pub temperature: f32,
}

/// Rows computed together.
pub struct MicroBatch {
    /// `[b, t]` int64.
    pub ids: Tensor,
    /// Flat positions into `[b * t]` of the hidden states that predict trained tokens.
    pub positions: Tensor,
    pub targets: Tensor,
    pub weights: Tensor,
    pub old: Tensor,
    pub advantages: Tensor,
    pub temperatures: Tensor,
}

/// Indices of the rows of each rank, balanced by a cost that grows with length (linear part and attention's square).
pub fn deal(lengths: &[usize], ranks: usize) -> Vec<Vec<usize>> {
    let cost = |n: usize| n + n * n / 2048;
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&row| (std::cmp::Reverse(cost(lengths[row])), row));
    let mut dealt = vec![(0usize, Vec::new()); ranks];
    for row in order {
        let least = (0..ranks).min_by_key(|&rank| (dealt[rank].0, rank)).unwrap_or(0);
        dealt[least].0 += cost(lengths[row]);
        dealt[least].1.push(row);
    }
    dealt.into_iter().map(|(_, rows)| rows).collect()
}

/// Cuts rows, longest first, into groups of at most `budget` padded tokens.
pub fn cut(rows: &[usize], lengths: &[usize], budget: usize) -> Vec<Vec<usize>> {
    let mut order = rows.to_vec();
    order.sort_by_key(|&row| (std::cmp::Reverse(lengths[row]), row));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for row in order {
        match groups.last_mut() {
            Some(group) if (group.len() + 1) * lengths[group[0]] <= budget => group.push(row),
            _ => groups.push(vec![row]),
        }
    }
    groups
}

impl MicroBatch {
    /// The same rows with their trained tokens in pieces of at most `most`.
    pub fn pieces(&self, most: i64) -> Vec<Self> {
        let n = self.positions.size1().unwrap_or(0);
        let most = most.max(1);
        (0..n.max(1))
            .step_by(most as usize)
            .map(|begin| {
                let part = |tensor: &Tensor| tensor.narrow(0, begin, most.min(n - begin));
                Self {
                    ids: self.ids.shallow_clone(),
                    positions: part(&self.positions),
                    targets: part(&self.targets),
                    weights: part(&self.weights),
                    old: part(&self.old),
                    advantages: part(&self.advantages),
                    temperatures: part(&self.temperatures),
                }
            })
            .collect()
    }

    pub fn new(rows: &[&TrainRow]) -> Self {
        let t = rows.iter().map(|row| row.tokens.len()).max().unwrap_or(1).max(1);
        let mut ids = vec![0i64; rows.len() * t];
        let (mut positions, mut targets) = (Vec::new(), Vec::new());
        let (mut weights, mut old, mut advantages, mut temperatures) = (vec![], vec![], vec![], vec![]);
        for (b, row) in rows.iter().enumerate() {
            for (i, token) in row.tokens.iter().enumerate() {
                ids[b * t + i] = i64::from(*token);
                if i > 0 && row.weights[i] != 0.0 {
                    positions.push((b * t + i - 1) as i64);
                    targets.push(i64::from(*token));
                    weights.push(row.weights[i]);
                    old.push(row.old.get(i).copied().unwrap_or(0.0));
                    advantages.push(row.advantage);
                    temperatures.push(row.temperature);
                }
            }
        }
        Self {
            ids: Tensor::from_slice(&ids).view([rows.len() as i64, t as i64]),
            positions: Tensor::from_slice(&positions),
            targets: Tensor::from_slice(&targets),
            weights: Tensor::from_slice(&weights),
            old: Tensor::from_slice(&old),
            advantages: Tensor::from_slice(&advantages),
            temperatures: Tensor::from_slice(&temperatures),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_dealt_once_and_no_rank_carries_much_more() {
        let lengths = [500, 10, 300, 300, 20, 480, 100];
        let dealt = deal(&lengths, 2);
        let mut all: Vec<usize> = dealt.concat();
        all.sort();
        assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
        let sums: Vec<usize> = dealt
            .iter()
            .map(|rows| rows.iter().map(|&r| lengths[r]).sum())
            .collect();
        assert!(sums[0].abs_diff(sums[1]) < 200, "{sums:?}");
    }

    #[test]
    fn a_micro_batch_holds_no_more_padded_tokens_than_its_budget_unless_one_row_alone_does() {
        let lengths = [500, 10, 300, 300, 20, 2000];
        let groups = cut(&[0, 1, 2, 3, 4, 5], &lengths, 1000);
        assert_eq!(groups, [vec![5], vec![0, 2], vec![3, 4, 1]]);
    }
}
